"""Arms of a user's own training loop, compared: what is shown, what a killed comparison keeps, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import simic

GAINS = {"plain": 0.0, "better": 3.0, "worse": -2.0, "same": 0.0}


def train(arm: str, seed: int) -> tuple[float, int]:
    own = np.random.default_rng([seed, *arm.encode()]).normal(0.0, 0.5)
    return 60.0 + float(np.random.default_rng(seed).normal(0.0, 10.0)) + GAINS[arm] + float(own), 100 + len(arm)


def compare(arms: list[str], **options: Any) -> simic.TrainingComparison:
    return simic.compare_trainings(train, arms, progress=False, **options)


def test_each_arm_is_compared_with_the_first_one_by_seed() -> None:
    found = compare(["plain", "better", "worse", "same"], seeds=range(3, 15))
    assert [(one.arm, one.verdict.value) for one in found.differences] == [
        ("better", "better"), ("worse", "worse"), ("same", "no difference shown"),
    ]  # fmt: skip
    for one in found.differences:
        mine, first = ([training.score for training in found.of(arm)] for arm in (one.arm, "plain"))
        pairs = np.subtract(mine, first)
        oracle = stats.ttest_1samp(pairs, 0.0).confidence_interval(0.95)
        assert one.difference.mean == pytest.approx(pairs.mean())
        assert (one.difference.lower, one.difference.upper) == pytest.approx((oracle.low, oracle.high))
        assert one.p <= one.adjusted_p <= 3 * one.p + 1e-12
    assert [(one.arm, one.seed) for one in found.trainings[:5]] == [
        ("plain", 3), ("better", 3), ("worse", 3), ("same", 3), ("plain", 4),
    ]  # fmt: skip
    assert simic.TrainingComparison.model_validate_json(found.model_dump_json()) == found


def test_the_table_says_what_is_shown_and_from_which_size_on() -> None:
    lines = str(compare(["plain", "better", "same"], seeds=range(8))).splitlines()
    assert lines[0].split()[:2] == ["arm", "score"]
    assert lines[2].startswith("better") and " better " in lines[2] and "106" in lines[2]
    assert "no difference shown" in lines[3]
    assert lines[-1].startswith("same: so many seeds show a difference of about ")
    assert not any("So few seeds" in line for line in lines)


def test_arms_that_never_differ_have_no_detectable_difference() -> None:
    found = simic.compare_trainings(lambda _arm, seed: float(seed), ["plain", "same"], seeds=range(8), progress=False)
    assert found.differences[0].detectable is None
    assert str(found).splitlines()[-1].startswith("same: all seeds differ by the same")
    few = compare(["plain", "better"], seeds=range(5))
    assert few.differences[0].detectable is None


@settings(deadline=None, max_examples=20)
@given(others=st.integers(1, 5), seeds=st.integers(2, 9))
def test_the_note_on_too_few_seeds_is_right(others: int, seeds: int) -> None:
    """An arm that is far better in every seed is shown to be better unless the note says that nothing can be."""
    arms = ["plain", *(f"arm {number}" for number in range(others))]
    found = simic.compare_trainings(
        lambda arm, seed: 0.0 if arm == "plain" else 100.0 + seed, arms, seeds=range(seeds), progress=False
    )
    can_show = found.differences[0].verdict.value == "better"
    assert ("So few seeds" in str(found)) is not can_show
    if not can_show:
        needed = int(str(found).partition("give ")[2].partition(" or more")[0])
        assert needed > seeds
        assert (len(arms) - 1) * 2.0 ** (1 - needed) <= 0.05 < (len(arms) - 1) * 2.0 ** (2 - needed)


def test_a_killed_comparison_repeats_no_training_that_it_kept(tmp_path: Path) -> None:
    path, trained = tmp_path / "trainings.jsonl", list[tuple[str, int]]()

    def dies(arm: str, seed: int) -> tuple[float, int]:
        if len(trained) == 5:
            raise KeyboardInterrupt
        trained.append((arm, seed))
        return train(arm, seed)

    arms = ["plain", "better"]
    with pytest.raises(KeyboardInterrupt):
        simic.compare_trainings(dies, arms, seeds=range(6), results=path, progress=False)
    with path.open("ab") as file:
        file.write(b'{"arm": "plain", "se')  # what a kill leaves of a line
    trained.clear()

    def goes_on(arm: str, seed: int) -> tuple[float, int]:
        trained.append((arm, seed))
        return train(arm, seed)

    found = simic.compare_trainings(goes_on, arms, seeds=range(6), results=path, progress=False)
    assert len(trained) == 7
    whole = compare(arms, seeds=range(6))
    assert [one.score for one in found.trainings] == [one.score for one in whole.trainings]
    assert [one.difference for one in found.differences] == [one.difference for one in whole.differences]
    assert len(path.read_text().splitlines()) == 12
    simic.compare_trainings(goes_on, arms, seeds=range(8), results=path, progress=False)
    assert len(trained) == 11, "more seeds train the new ones only"


@pytest.mark.parametrize(
    ("line", "error"),
    [({"arm": "plain", "seed": 0}, simic.ContractError), ("torn in the middle", simic.IntegrityError)],
)
def test_a_results_file_of_something_else_is_refused(tmp_path: Path, line: Any, error: type[Exception]) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(f"{line if isinstance(line, str) else json.dumps(line)}\n")
    with pytest.raises(error, match="line 1"):
        compare(["plain", "better"], seeds=range(2), results=path)


@pytest.mark.parametrize(
    ("arms", "options", "message"),
    [
        (["plain"], {}, "arms: expected two or more different names"),
        (["plain", "plain"], {}, "arms: expected two or more different names"),
        ("plain", {}, "arms: expected two or more different names"),
        (None, {}, "arms: expected two or more, as a list, found None"),
        (["plain", ""], {}, "names of 1 to 64 characters"),
        ([["plain"], ["better"]], {}, "arms: expected names of 1 to 64 characters"),
        (["plain", "better"], {"seeds": 6}, "seeds: expected two or more, as a list, found 6"),
        (["plain", "better"], {"seeds": [1]}, "seeds: expected two or more"),
        (["plain", "better"], {"seeds": [1, 1.5]}, "seeds: expected two or more"),
        (["plain", "better"], {"seeds": [[0], [1]]}, "seeds: expected two or more"),
        (["plain", "better"], {"seeds": range(60_000)}, "at most 100,000 trainings"),
        (["plain", "better"], {"confidence": 95}, "confidence: expected a number above 0.5 and below 1"),
        (["plain", "better"], {"confidence": "0.9"}, "confidence: expected a number above 0.5 and below 1"),
        (["plain", "better"], {"results": 5}, "results: expected the path of a file, found 5"),
        (["plain", "better"], {"results": Path(__file__).parent}, "results: expected .* a file, found the folder /"),
    ],
)
def test_what_cannot_be_compared_is_refused(arms: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(simic.ConfigError, match=message):
        compare(arms, **options)


def test_what_trains_nothing_is_refused() -> None:
    with pytest.raises(simic.ConfigError, match="train: expected a function of arm and seed, found 'plain'"):
        simic.compare_trainings("plain", ["plain", "better"])


@pytest.mark.parametrize("score", [float("nan"), float("inf"), None, "much", (1.0, -3), (1.0, 2, 3)])
def test_a_training_without_a_finite_score_is_named(score: Any) -> None:
    with pytest.raises(simic.ConfigError, match=r"train\('plain', 0\): expected a finite score"):
        simic.compare_trainings(lambda _arm, _seed: score, ["plain", "better"], progress=False)


def test_a_comparison_is_drawn(tmp_path: Path) -> None:
    path = compare(["plain", "better", "same"], seeds=range(6)).plot(tmp_path / "new" / "gains.png")
    assert path.read_bytes()[:4] == b"\x89PNG"


def test_a_file_of_something_else_without_a_line_end_is_kept(tmp_path: Path) -> None:
    """An append cuts off what a kill left of a line, so nothing else may stand there."""
    path = tmp_path / "comparison.json"
    content = compare(["plain", "better"], seeds=range(2)).model_dump_json()
    path.write_text(content, "utf-8")
    with pytest.raises(simic.ContractError, match="name another file"):
        compare(["plain", "better"], seeds=range(2), results=path)
    assert path.read_text("utf-8") == content


@pytest.mark.parametrize("length", [1, 7, 40])
def test_a_training_that_a_kill_cut_off_is_made_again(tmp_path: Path, length: int) -> None:
    path = tmp_path / "results.jsonl"
    whole = compare(["plain", "better"], seeds=range(3), results=path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:length])
    again = compare(["plain", "better"], seeds=range(3), results=path)
    assert [one.score for one in again.trainings] == [one.score for one in whole.trainings]


def test_one_comparison_at_a_time_uses_a_file(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"

    def trains(_arm: str, _seed: int) -> float:
        with pytest.raises(simic.TransientError, match=r"the comparison in .*results\.jsonl is busy"):
            compare(["plain", "better"], seeds=range(2), results=path)
        return 0.0

    found = simic.compare_trainings(trains, ["plain", "better"], seeds=range(2), results=path, progress=False)
    assert len(found.trainings) == 4
