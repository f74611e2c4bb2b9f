"""Every metric that a training logs is declared, for the phases that deliver it; nothing is declared in vain."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from support.builders.learning import bandit_branches, bandit_episodes
from support.builders.snapshots import write_snapshot

from simic.contracts.metrics import METRICS, Origin
from simic.contracts.settings.continual import CurriculumConfig, EwcConfig
from simic.contracts.settings.network import NetworkConfig
from simic.contracts.settings.training import TrainConfig
from simic.hosts.plugins import blueprint_names
from simic.learning.objectives import OBJECTIVES
from simic.learning.training_run import TrainingRun
from simic.replay.dataset import GraphDataset

SMALL = TrainConfig(
    network=NetworkConfig(hidden=8, layers=1),
    batch_sequences=8,
    cloning_passes=1,
    value_passes=1,
    vtrace_passes=1,
    distil_passes=1,
    q_updates=2,
    min_experiences=10,
    min_commit_rate=0.0,
)
CONTINUAL = {
    "ewc": EwcConfig(weight=1.0),
    "curriculum": CurriculumConfig(enabled=True),
    "entropy_bonus": 0.1,
    "entropy_bonus_last": 0.0,
}
Logged = dict[str, list[set[str]]]
"""Names of the metrics of each update, by phase."""


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Logged, set[str]]]:
    """The updates and the results of a training with every shipped objective, a distillation, and a curriculum."""
    root = tmp_path_factory.mktemp("metrics")
    log = write_snapshot(root / "log", bandit_episodes(range(16)), split="train")
    reports = [*bandit_branches(range(90)), *bandit_episodes(range(100, 116))]
    mixed = write_snapshot(root / "mixed", reports, split="train")
    found = {"distil": _trained(mixed, {})}
    for name in sorted(set(OBJECTIVES.names()) - set(OBJECTIVES.installed())):
        without_entropy = {"entropy_bonus_last": None} if name == "cloning" else {}
        found[name] = _trained(log, {"objective": name, **without_entropy})
    ranked = write_snapshot(
        root / "ranked", bandit_episodes(range(16)), split="train", difficulty=dict.fromkeys(range(16), 0.0)
    )
    found["continual"] = _trained(ranked, CONTINUAL)
    return found


def _trained(snapshot: Any, changes: dict[str, Any]) -> tuple[Logged, set[str]]:
    store = GraphDataset.load(Path(snapshot.path), blueprints=blueprint_names())
    training, logged = TrainingRun.begin(store, SMALL.model_copy(update=changes), None, 0), defaultdict(list)
    for record in training.run():
        logged[record.phase].append(set(record.metrics))
    return dict(logged), set(training.final_metrics)


def test_every_logged_metric_is_declared_for_its_phase(trainings: dict[str, tuple[Logged, set[str]]]) -> None:
    for name, (logged, results) in trainings.items():
        for phase, updates in logged.items():
            of_phase = {one.name for one in METRICS.values() if one.origin is Origin.UPDATE and phase in one.phases}
            assert set().union(*updates) - of_phase == set(), (
                f"declare them in simic/contracts/metrics.py: {name}, {phase}"
            )
        known = {one.name for one in METRICS.values() if one.origin is not Origin.CLOCK}
        assert results - known == set(), name


def test_every_update_of_a_phase_delivers_what_is_declared_for_it(
    trainings: dict[str, tuple[Logged, set[str]]],
) -> None:
    seen = set()
    for logged, _ in trainings.values():
        for phase, updates in logged.items():
            seen.add(phase)
            always = {
                one.name
                for one in METRICS.values()
                if one.origin is Origin.UPDATE and phase in one.phases and not one.only_with
            }
            for names in updates:
                assert always - names == set(), phase
    assert seen == {phase for one in METRICS.values() for phase in one.phases}


def test_every_result_is_one_of_some_training(trainings: dict[str, tuple[Logged, set[str]]]) -> None:
    results = {one.name for one in METRICS.values() if one.origin is Origin.RESULT}
    assert results - set().union(*(found for _, found in trainings.values())) == set()
