"""A curriculum: stages that are passed, held, left downwards and never locked, and passes that keep to them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from support.builders.learning import bandit_branches, bandit_episodes
from support.builders.snapshots import write_snapshot
from support.builders.trainings import sealed

from simic.contracts.errors import ConfigError, ContractError
from simic.contracts.results.receipts import SnapshotManifest
from simic.contracts.settings.continual import CurriculumConfig, CurriculumState
from simic.contracts.settings.network import NetworkConfig
from simic.contracts.settings.training import TrainConfig
from simic.hosts.plugins import blueprint_names
from simic.learning.continual.curriculum import Curriculum, decide_stage, record_episode, skip_stage
from simic.learning.training_run import TrainingRun, WarmStart
from simic.replay.dataset import GraphDataset
from simic.runtime.seeds import generator
from simic.runtime.telemetry import read_metrics

CONFIG = CurriculumConfig(enabled=True)
EPISODES = 48
SMALL = TrainConfig(
    network=NetworkConfig(hidden=8, layers=1),
    batch_sequences=8,
    cloning_passes=1,
    value_passes=1,
    vtrace_passes=6,
    round_passes=2,
    max_passes=100,
    min_experiences=10,
    min_commit_rate=0.0,
    curriculum=CurriculumConfig(
        enabled=True, min_episodes=(10, 20, 30, 40), max_episodes=(20, 40, 60, 80), success_error=1e3
    ),
)
DIFFICULTY = {key: key / (EPISODES - 1) for key in range(EPISODES)}


def after(state: CurriculumState, successes: int, failures: int, config: CurriculumConfig = CONFIG) -> CurriculumState:
    """The state after one pass."""
    for is_success in [True] * successes + [False] * failures:
        state = record_episode(state, is_success=is_success)
    return decide_stage(state, config)


def outcomes(state: CurriculumState) -> list[tuple[int, str]]:
    return [(visit.stage, visit.outcome) for visit in state.visits]


def test_the_defaults_are_the_designs() -> None:
    assert not TrainConfig().curriculum.enabled
    assert (CONFIG.limits, CONFIG.success) == ((0.25, 0.5, 0.75, 1.0), (0.7, 0.6, 0.5, 0.4))
    assert (CONFIG.min_episodes, CONFIG.max_episodes) == ((100, 200, 300, 500), (500, 1000, 1500, 2000))


@pytest.mark.parametrize(
    ("stage", "successes", "failures", "expected", "outcome"),
    [
        (0, 99, 0, 0, None),
        (0, 70, 30, 1, "passed"),
        (0, 69, 31, 0, None),
        (0, 349, 150, 0, None),
        (0, 349, 151, 0, "held"),
        (0, 0, 500, 0, "held"),
        (1, 399, 601, 0, "demoted"),
        (1, 400, 600, 1, "held"),
        (1, 0, 999, 1, None),
        (3, 200, 300, 3, None),
        (3, 800, 1200, 3, "passed"),
        (3, 300, 1700, 2, "demoted"),
    ],
)
def test_what_a_stage_comes_to(stage: int, successes: int, failures: int, expected: int, outcome: str | None) -> None:
    found = after(CurriculumState(stage=stage), successes, failures)
    assert found.stage == expected
    assert outcomes(found) == ([] if outcome is None else [(stage, outcome)])
    assert (found.episodes, found.successes) == ((successes + failures, successes) if outcome is None else (0, 0))


def test_d20_a_simulated_run_reaches_the_last_stage() -> None:
    """A learner that gets better with every episode, on hosts of which the harder ones succeed less."""
    draw, state, seen = generator(0, "simulated"), CurriculumState(), 0
    while state.stage < 3 or not state.episodes:
        limit = CONFIG.limits[state.stage]
        for _ in range(50):
            skill = min(0.95, 0.2 + seen / 4000)
            state = record_episode(state, is_success=bool(draw.random() < skill * (1.0 - 0.4 * limit * draw.random())))
            seen += 1
        state = decide_stage(state, CONFIG)
        assert seen < 20_000
    assert [stage for stage, outcome in outcomes(state) if outcome == "passed"][-1] == 2
    assert {stage for stage, _ in outcomes(state)} >= {0, 1, 2}
    assert sum(visit.episodes for visit in state.visits) + state.episodes == seen, "every episode is counted once"


Passes = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 400)), max_size=40)


@given(Passes)
def test_d20_no_history_locks_a_curriculum(history: Sequence[tuple[int, int]]) -> None:
    """Timeouts hold, release or demote; from wherever they lead, successful passes reach the last stage and stay."""
    state = CurriculumState()
    for successes, failures in history:
        state = after(state, successes, failures)
    for _ in range(60):
        state = after(state, 100, 0)
    assert state.stage == 3


def test_d20_a_learner_that_never_succeeds_gets_to_all_hosts_too() -> None:
    state = CurriculumState()
    for _ in range(40):
        state = after(state, 0, CONFIG.max_episodes[state.stage])
    fallen = [(1, "demoted"), (2, "demoted"), (3, "demoted")]
    assert [one for one in outcomes(state) if one[1] == "demoted"] == fallen, "once per stage"
    assert outcomes(state)[:5] == [(0, "held"), (0, "released"), (1, "demoted"), (0, "held"), (0, "released")]
    assert set(outcomes(state)[-20:]) == {(3, "held")}


def test_a_stage_is_released_only_if_it_was_held_just_before() -> None:
    state = after(after(CurriculumState(), 0, 500), 70, 30)
    assert outcomes(state) == [(0, "held"), (0, "passed")]
    state = after(after(state, 0, 1000), 0, 500)
    assert outcomes(state)[2:] == [(1, "demoted"), (0, "held")]


@given(Passes)
def test_stages_change_by_one_and_do_not_flap(history: Sequence[tuple[int, int]]) -> None:
    state = CurriculumState()
    for successes, failures in history:
        before, state = state, after(state, successes, failures)
        assert abs(state.stage - before.stage) <= 1
        if len(state.visits) == len(before.visits):
            continue
        visit = state.visits[-1]
        assert visit.episodes >= CONFIG.min_episodes[visit.stage]
        if state.stage < before.stage:
            assert visit.episodes >= CONFIG.max_episodes[visit.stage], "a stage is not left downwards at once"
            assert visit.successes / visit.episodes < CONFIG.success[visit.stage] - CONFIG.hysteresis
        elif state.stage > before.stage and visit.outcome != "released":
            assert visit.successes / visit.episodes >= CONFIG.success[visit.stage]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"limits": (0.25, 0.5, 0.75, 0.9)}, "must rise to 1"),
        ({"limits": (0.25, 0.25, 0.75, 1.0)}, "must rise to 1"),
        ({"min_episodes": (600, 200, 300, 500)}, "exceeds train.curriculum.max_episodes"),
        ({"success": (0.7, 0.6, 0.5)}, "success"),
    ],
)
def test_stages_out_of_order_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        CurriculumConfig(**settings)


def test_a_pass_draws_what_its_stage_allows() -> None:
    curriculum = Curriculum(CONFIG, np.array([0.0, 0.25, 0.26, 1.0, np.nan]))
    assert curriculum.allowed(np.arange(4)).tolist() == [0, 1]
    assert curriculum.allowed(np.array([], dtype=np.int64)).tolist() == [] and curriculum.state.stage == 0
    assert curriculum.allowed(np.array([2])).tolist() == [2]
    assert outcomes(curriculum.state) == [(0, "empty")], "a stage without episodes is passed over"
    assert curriculum.allowed(np.array([3])).tolist() == [3] and curriculum.state.stage == 3
    with pytest.raises(ContractError, match="does not say how hard the hosts of 1 of 5 episodes are"):
        curriculum.allowed(np.arange(5))
    assert outcomes(skip_stage(CurriculumState(), CONFIG)) == [(0, "empty")]


@pytest.mark.parametrize(("bound", "successes"), [(0.85, 0.0), (1.0, 1.0), (1.15, 2.0), (1.25, 3.0)])
def test_an_episode_succeeds_if_its_values_are_near_their_targets(bound: float, successes: float) -> None:
    """Root mean square over its valid steps, in advantage scales: 0.89, 1.2 and 1.13."""
    curriculum = Curriculum(CONFIG.model_copy(update={"success_error": bound}), np.zeros(3))
    errors = torch.tensor([[3.0, 3.0, 0.0], [1.0, 99.0, 4.0]])
    valid = torch.tensor([[True, True, True], [True, False, True]])
    metrics = {name: float(value) for name, value in curriculum.metrics(errors, valid, 2.5).items()}
    assert metrics == {"curriculum_stage": 0.0, "curriculum_episode_count": 3.0, "curriculum_success_count": successes}
    curriculum.record(metrics)
    assert (curriculum.state.episodes, curriculum.state.successes) == (3, successes)


def test_a_stage_that_times_out_says_so(caplog: pytest.LogCaptureFixture) -> None:
    curriculum = Curriculum(CONFIG, np.zeros(1))
    for _ in range(500):
        curriculum.record({"curriculum_episode_count": 1.0, "curriculum_success_count": 0.0})
    with caplog.at_level(logging.INFO, logger="simic"):
        curriculum.end_pass()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "curriculum stage 0 (difficulty up to 0.25) held: 0 of 500 episodes succeeded, needed 0.7" in caplog.text


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("curriculum")


@pytest.fixture(scope="module")
def log(root: Path) -> SnapshotManifest:
    return write_snapshot(root / "log", bandit_episodes(range(EPISODES)), split="train", difficulty=DIFFICULTY)


@pytest.mark.parametrize(
    "changes",
    [{}, {"sampling": "prioritised"}, {"objective": "ppo"}, {"objective": "awr", "micro_batch_sequences": 3}],
)
def test_counted_passes_learn_from_their_stage_only(
    changes: dict[str, Any], log: SnapshotManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = GraphDataset.load(Path(log.path), blueprints=blueprint_names())
    config = SMALL.model_copy(update={"ppo_max_kl": 100.0, **changes})
    training, drawn = TrainingRun.begin(store, config, None, 0), list[float]()
    real = store.batch
    monkeypatch.setattr(store, "batch", lambda ids: (drawn.append(store.difficulty[ids].max()), real(ids))[1])
    stages, seen = list[int](), list[float]()
    for record in training.run():
        if "curriculum_stage" in record.metrics:
            stages.append(int(record.metrics["curriculum_stage"]))
            seen.append(drawn[-1])
    assert sorted(set(stages)) == [0, 1, 2, 3] and stages == sorted(stages), "every episode succeeds here"
    for stage, hardest in zip(stages, seen, strict=True):
        assert hardest <= config.curriculum.limits[stage]
    assert max(one for one, stage in zip(seen, stages, strict=True) if stage == 3) > 0.75
    assert [(visit.stage, visit.outcome) for visit in training.stages] == [
        *((stage, "passed") for stage in range(3)),
        *([(3, "passed")] if len(training.stages) > 4 else []),
        (3, "open"),
    ]
    assert training.final_metrics["updates_left_out"] > 0.0
    made = training.mean_passes * training.episodes_seen
    assert sum(visit.episodes for visit in training.stages) == pytest.approx(made), "an episode counts when it is drawn"


def test_the_report_has_the_stages_and_a_round_goes_on_with_them(root: Path, log: SnapshotManifest) -> None:
    first = sealed(root, log, SMALL)
    assert [visit.stage for visit in first.curriculum][:4] == [0, 1, 2, 3]
    curves = [metrics for _, metrics in read_metrics(Path(first.curves_path)) if "curriculum_stage" in metrics]
    assert sum(visit.episodes for visit in first.curriculum) == sum(one["curriculum_episode_count"] for one in curves)
    again = sealed(root, log, SMALL, WarmStart(Path(first.path), is_continuation=True))
    assert again.curriculum[: len(first.curriculum) - 1] == first.curriculum[:-1]
    other = sealed(root, log, SMALL, WarmStart(Path(first.path), is_continuation=False))
    assert other.curriculum[0].stage == 0 and other.curriculum != again.curriculum, "a new night begins anew"
    assert sealed(root, log, SMALL.model_copy(update={"curriculum": CurriculumConfig()})).curriculum == []


def test_vtrace_that_is_undone_takes_its_stages_back(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports = [*bandit_branches(range(90)), *bandit_episodes(range(100, 132))]
    difficulty = {key: (key - 100) / 31 for key in range(100, 132)}
    mixed = write_snapshot(root / "mixed", reports, split="train", difficulty=difficulty)
    store = GraphDataset.load(Path(mixed.path), blueprints=blueprint_names())
    config = SMALL.model_copy(update={"distil_passes": 2})
    kept = TrainingRun.begin(store, config, None, 0)
    regrets = iter([0.0, 1.0, 2.0])
    monkeypatch.setattr(
        "simic.learning.training_run.regrets",
        lambda *_: {"held_out_regret": next(regrets, 0.0), "held_out_greedy_regret": 0.0},
    )
    for _ in kept.run():
        pass
    assert [visit.stage for visit in kept.stages] == [0], "worse than before, so nothing of V-trace stays"


def test_a_distillation_without_vtrace_says_that_nothing_is_staged(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    branches = write_snapshot(root / "branches", bandit_branches(range(90)), split="train", difficulty={})
    store = GraphDataset.load(Path(branches.path), blueprints=blueprint_names())
    with caplog.at_level(logging.WARNING, logger="simic"):
        for _ in TrainingRun.begin(store, SMALL.model_copy(update={"distil_passes": 1}), None, 0).run():
            pass
    assert "train.curriculum has no effect" in caplog.text
    assert "the snapshot has 0 episodes besides branches" in caplog.text


def test_an_objective_without_counted_passes_is_refused(log: SnapshotManifest, root: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.curriculum has no effect on train\.objective fitted_q"):
        sealed(root, log, SMALL.model_copy(update={"objective": "fitted_q"}))


def test_a_snapshot_without_difficulties_is_refused(root: Path) -> None:
    bare = write_snapshot(root / "bare", bandit_episodes(range(24)), split="train")
    with pytest.raises(ContractError, match=r"has no difficulty\.parquet"):
        sealed(root, bare, SMALL)
