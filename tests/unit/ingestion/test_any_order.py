"""Reports of episodes in any order: the same verdict on every order, and each report judged once."""

from __future__ import annotations

import json
import random

from hypothesis import given, settings
from hypothesis import strategies as st
from support.builders.reports import episode, line

from simic.ingestion.any_order import AnyOrder
from simic.ingestion.episode_order import EpisodeOrder, Link, read_link

STEPS = 8
LINKS = [read_link(line(report)) for key in (1, 2) for report in episode(key, horizon=STEPS, script={})]


def judged(links: list[Link], most_held: int = 100) -> tuple[EpisodeOrder, list[tuple[str, int, str | None]]]:
    order = EpisodeOrder(10, 10)
    sorter: AnyOrder[int] = AnyOrder(order, most_held)
    found = [one for place, link in enumerate(links) for one in sorter.take(place, link)]
    found += sorter.end()
    assert sorted(one.place for one in found) == list(range(len(links))), "each report is judged once"
    assert all(links[one.place] is one.link for one in found)
    return order, [(one.link.run_id, one.link.step, one.fault) for one in found]


orders = st.permutations(range(2 * STEPS))


@settings(deadline=None, max_examples=60)
@given(orders)
def test_whole_episodes_are_whole_in_every_order(order: list[int]) -> None:
    seen, found = judged([LINKS[index] for index in order])
    assert (seen.complete, seen.incomplete) == (2, 0)
    assert {fault for _, _, fault in found} == {None}


@settings(deadline=None, max_examples=60)
@given(orders, st.integers(0, STEPS - 1))
def test_a_missing_step_makes_its_episode_incomplete_in_every_order(order: list[int], gone: int) -> None:
    seen, found = judged([LINKS[index] for index in order if index != gone])
    assert (seen.complete, seen.incomplete) == (1, 1)
    faults = [(step, fault) for _, step, fault in found if fault is not None]
    gap = [(gone + 1, f"step: expected {gone}, the next one, found {gone + 1}")]
    assert faults == (gap if 0 < gone < STEPS - 1 else []), (
        "an episode may begin before these files, or go on after them"
    )


@settings(deadline=None, max_examples=60)
@given(orders, st.integers(1, STEPS - 1))
def test_a_step_that_does_not_join_is_told_once_in_every_order(order: list[int], bad: int) -> None:
    raw = json.loads(line(episode(1, horizon=STEPS, script={})[bad]))
    raw["state"]["validation_accuracy"] += 0.1
    links = [*LINKS[:bad], read_link(json.dumps(raw).encode()), *LINKS[bad + 1 :]]
    seen, found = judged([links[index] for index in order])
    assert (seen.complete, seen.incomplete) == (1, 1)
    assert [step for _, step, fault in found if fault is not None] == [bad]


def test_memory_is_bounded_by_giving_up_the_episode_that_waits_longest() -> None:
    late = [link for link in LINKS if link.step]
    random.Random(0).shuffle(late)  # noqa: S311 - a fixed order
    seen, found = judged([*late, *(link for link in LINKS if not link.step)], most_held=9)
    assert (seen.complete, seen.incomplete) == (1, 1)
    assert {fault for _, _, fault in found} == {None}
