"""Candidates that meet on the same hosts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import pytest

from simic.contracts.controllers import ControllerSpec, HeuristicRules, Plan, PlannedSeed
from simic.contracts.rewards import RewardConfig
from simic.contracts.settings.run import WorldConfig
from simic.contracts.splits import Split, split_of
from simic.hosts.host_sets import identify
from simic.runtime.progress import Advance, NoProgress
from simic.validation.baselines import halving
from simic.validation.baselines.halving import NO_GROWTH, EpisodeRunner, Rung, Scores, halve, pairs_of
from simic.validation.episodes import TrialJob, run_episodes

WORLD = WorldConfig(horizon=6, workers=1, chunk=4)
GATE = ControllerSpec(name="schedule", plan=Plan(seeds=[PlannedSeed(epoch=0, slot=1, blueprint="gate")]))
RULES = ControllerSpec(name="heuristic", rules=HeuristicRules(window=0, time_needed=4, keep=0.0, hurts=0.0))


class Counted(NoProgress):
    """Keeps what was announced and what was done."""

    def __init__(self) -> None:
        self.tasks: dict[str, list[int]] = {}

    @contextmanager
    def task(self, name: str, total: int) -> Iterator[Advance]:
        done = self.tasks[name] = [total, 0]

        def advance(count: int) -> None:
            done[1] += count

        yield advance


def test_hosts_grow_each_under_a_controller_of_its_own() -> None:
    """The same keys again and again in one ensemble, each as if it were alone under its controller and its dice."""
    hosts = identify("benchmark", [7, 7, 12, 7, 12, 12])
    specs = (ControllerSpec(name="wait"), GATE, RULES, ControllerSpec(name="random"))
    which = (0, 1, 2, 2, 1, 3)
    trial = TrialJob("search", specs[0], hosts, WORLD, RewardConfig(), 0)
    together = halving._grow_mixed(halving._Job(specs, which, trial))
    for row, own in enumerate(which):
        alone = run_episodes(TrialJob("alone", specs[own], (hosts[row],), WORLD, RewardConfig(), 0))
        assert together.returns[row] == alone.returns[0]
    assert (together.illegal_actions == 0).all()
    assert together.returns[0] != together.returns[1]


def test_candidates_are_paired_with_never_growing_host_by_host() -> None:
    progress = Counted()
    runner = EpisodeRunner(WORLD, RewardConfig(), 1000, progress)
    gate, rules = runner.enter([GATE, RULES])
    scores = runner.run("first", {(gate, 0), (gate, 1), (rules, 1)}, 2)
    keys = runner.reset()
    assert {split_of("benchmark", key) for key in keys} == {Split.TRAIN}
    assert (len(keys), min(keys) >= 1000) == (10, True)
    own = identify("benchmark", [key for key in keys if key % 5 == 1])
    for candidate, spec in ((gate, GATE), (rules, RULES)):
        with_it, without = (
            run_episodes(TrialJob("t", one, own, WORLD, RewardConfig(), 0))
            for one in (spec, ControllerSpec(name="wait"))
        )
        assert scores.of(candidate, 1).tolist() == (with_it.returns - without.returns).tolist()
        on_test = [one.returns + 100.0 * (one.test_accuracy - one.validation_accuracy) for one in (with_it, without)]
        assert scores.tested(candidate, 1).tolist() == (on_test[0] - on_test[1]).tolist()
    assert (scores.of(NO_GROWTH, 3) == 0.0).all()
    with pytest.raises(KeyError):
        scores.of(rules, 0)
    assert progress.tasks == {"first": [16, 16]}
    runner.run("second", set(), 1)
    assert not {*runner.reset()} & {*keys}, "a host was met twice"


def test_a_candidate_known_keeps_its_index() -> None:
    runner = EpisodeRunner(WORLD, RewardConfig(), 0, NoProgress())
    first = runner.enter([GATE, RULES])
    assert runner.enter([RULES, GATE, RULES]) == [first[1], first[0], first[1]]
    assert runner.enter([ControllerSpec(name="wait")]) == [NO_GROWTH]


def scores_of(values: Mapping[tuple[int, int], Sequence[float]]) -> Scores:
    """Scores with the same differences on test data."""
    return Scores({case: np.stack([own, own], axis=1) for case, own in values.items()})


def test_means_weigh_families_alike_and_add_up_over_rungs() -> None:
    early = scores_of({(1, 0): [4.0], (1, 1): [0.0, 0.0, 0.0]})
    late = early.plus(scores_of({(1, 0): [0.0], (2, 0): [3.0], (2, 1): [-1.0]}))
    assert (early.mean(1, [0, 1]), late.mean(1, [0, 1]), late.mean(2, [0, 1])) == (2.0, 1.0, 1.0)
    assert late.best([2, 1, NO_GROWTH], [0, 1], 2) == [1, 2], "equals go by index"
    assert late.best([2, 1], [1], 1) == [1]


class Scripted(EpisodeRunner):
    """Plays back worths per candidate and rung."""

    def __init__(self, worths: list[dict[int, float]]) -> None:
        super().__init__(WORLD, RewardConfig(), 0, NoProgress())
        self.worths, self.fields = worths, list[set[int]]()

    def run(self, label: str, pairs: object, hosts_per_family: int) -> Scores:
        cases = set(pairs)  # type: ignore[call-overload]
        worths = self.worths[len(self.fields)]
        self.fields.append({candidate for candidate, _ in cases})
        return scores_of({(one, family): [worths.get(one, 0.0)] * hosts_per_family for one, family in cases})


def test_the_last_hosts_alone_rank_those_left_and_the_anchor_is_among_them() -> None:
    runner = Scripted([{1: 9.0, 2: 5.0, 3: 1.0, 4: -3.0}, {1: -1.0, 2: 2.0, 4: 0.5}])
    (ranked,) = halve(runner, "x", [[1, 2, 3, 4]], [[0, 1]], [Rung(10, 1), Rung(2, 1)], anchor=4)
    assert runner.fields == [{1, 2, 3, 4}, {1, 2, 4}]
    assert ranked == [2, 4, 1]


def test_never_growing_as_the_anchor_is_worth_nothing() -> None:
    runner = Scripted([{1: 1.0}, {1: -1.0}])
    assert halve(runner, "x", [[1]], [[0]], [Rung(10, 1), Rung(2, 1)], anchor=NO_GROWTH) == [[NO_GROWTH, 1]]


def test_survivors_bring_variations_and_an_empty_field_stays_empty() -> None:
    runner = Scripted([{1: 1.0, 2: 2.0}, {2: 1.0, 12: 3.0}])
    made = iter([12, 13])
    ranked = halve(
        runner, "x", [[1, 2], []], [[0], [1]], [Rung(10, 1), Rung(1, 1, 2)], anchor=1, vary=lambda _old: next(made)
    )
    assert runner.fields[1] == {1, 2, 12, 13}
    assert ranked == [[12, 2, 1, 13], []]


def test_pairs_are_every_candidate_on_the_families_of_its_group() -> None:
    assert pairs_of([[1, NO_GROWTH], [2]], [[0], [0, 1]]) == {(1, 0), (2, 0), (2, 1)}
