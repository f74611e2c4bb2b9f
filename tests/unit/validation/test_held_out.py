"""Which logged episodes judge, and the share of those that were cut off, by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from simic.replay.cut_off import CutOff
from simic.replay.logged import EpisodeHead
from simic.validation.held_out import HeldOut, held_out_episodes

TOO_FEW = "of a set and controller with fewer than 50 hosts"


def whole(behaviour: str, count: int, of_set: str = "graftnet", begin: str = "m") -> list[EpisodeHead]:
    """Whole episodes of as many test hosts."""
    return [
        EpisodeHead(f"{begin}{behaviour}{row:05}", of_set, row, "test", behaviour, None, None, False)
        for row in range(count)
    ]


def cut(behaviour: str, count: int, of_set: str = "graftnet", begin: str = "m") -> list[CutOff]:
    return [
        CutOff(f"{begin}{behaviour}{9000 + row}", "unfinished", of_set, behaviour, row, behaviour)
        for row in range(count)
    ]


def chosen(heads: Sequence[EpisodeHead], cut_off: Sequence[CutOff], most: int = 10_000) -> HeldOut:
    return held_out_episodes(sorted(heads), ["graftnet", "graphnet"], most, cut_off)


def test_episodes_that_judge_nothing_hide_no_crash() -> None:
    """A tenth of the used controller's episodes crashed; 2,940 others belong to controllers with 49 hosts each."""
    guests = [head for number in range(60) for head in whole(f"guest{number}", 49)]
    found = chosen([*whole("lab", 90), *guests], cut("lab", 10))
    assert {head.behaviour for head in found.used} == {"lab"}
    assert (found.cut_off, found.group_cut_off) == (0.1, {("graftnet", "lab"): 0.1})
    assert found.left_out == {TOO_FEW: 2940, "cut off: unfinished": 10}


def test_one_controller_or_set_hides_no_crash_of_another() -> None:
    heads = [*whole("lab", 5000), *whole("guest", 90), *whole("lab", 90, "graphnet", "n")]
    found = chosen(heads, [*cut("guest", 10), *cut("lab", 30, "graphnet", "n")])
    assert found.group_cut_off == {
        ("graftnet", "lab"): 0.0, ("graftnet", "guest"): 0.1, ("graphnet", "lab"): 0.25,
    }  # fmt: skip
    assert found.cut_off == 0.25


def test_crashes_of_controllers_that_judge_nothing_count_against_their_set_alone() -> None:
    """Of one that never ends nothing is used; a stray episode of another does not refuse 990."""
    stray = chosen([*whole("lab", 940), *whole("guest", 50), *whole("few", 3)], cut("few", 1))
    assert (stray.cut_off, set(stray.group_cut_off.values())) == (1 / 991, {0.0})
    many = chosen(whole("lab", 900), cut("crashing", 100))
    assert (many.cut_off, many.group_cut_off) == (0.1, {("graftnet", "lab"): 0.0})


def test_an_episode_counts_once_for_each_controller_that_its_reports_name() -> None:
    both = [CutOff("m", "mixed_identity", "graftnet", name, 1, name) for name in ("lab", "guest")]
    found = chosen([*whole("lab", 99), *whole("guest", 99)], both)
    assert found.cut_off == pytest.approx(1 / 199)
    assert found.group_cut_off == {("graftnet", "lab"): 0.01, ("graftnet", "guest"): 0.01}
    assert found.left_out == {"cut off: mixed_identity": 1}


def test_both_sides_of_a_share_are_of_the_first_episodes() -> None:
    """Of 100 the first 60 judge: crashes among them count, and later ones do not."""
    heads = whole("lab", 100)
    early, late = [CutOff(f"mlab{row:05}x", "gap", "graftnet", "lab", row, "lab") for row in (5, 80)]
    truncated = heads[70]._replace(is_truncated=True)
    found = chosen([*heads[:70], truncated, *heads[71:]], [early, late], most=60)
    assert found.cut_off == found.group_cut_off["graftnet", "lab"] == 1 / 61
    assert found.left_out == {"beyond the first 60": 39, "cut off: gap": 1}
    earlier = heads[7]._replace(is_truncated=True)
    assert chosen([*heads[:7], earlier, *heads[8:]], [early, late], most=60).cut_off == 2 / 62


def test_late_crashes_count_where_as_many_episodes_are_there_as_may_judge() -> None:
    late = [CutOff("n", "gap", "graftnet", "lab", 1, "lab")]
    assert [chosen(whole("lab", 100), late, most).cut_off for most in (101, 100, 99)] == [1 / 101, 1 / 101, 0.0]


def test_what_nobody_counted_has_no_share() -> None:
    found = held_out_episodes(whole("lab", 60), ["graftnet"], 100)
    assert (len(found.used), found.cut_off, found.group_cut_off) == (60, None, {})
    assert chosen(whole("lab", 49), []).cut_off is None
