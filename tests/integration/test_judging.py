"""From a sealed policy to a decision on record: real hosts, a real network, a real registry."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.judged import SIGNER, evidence_of
from support.store import furnished_home

from simic.contracts.config import NetworkConfig, RunConfig, TrialConfig, WorldConfig
from simic.contracts.errors import GateRejected, IntegrityError
from simic.contracts.receipts import Provenance, TrainingReport, ValidationReport, Verdict
from simic.contracts.splits import Split, split_of
from simic.controllers.network import NetworkShape, PolicyNetwork
from simic.controllers.store import describe, save_policy
from simic.hosts.catalogue import blueprint_names
from simic.registry.catalogue import Registry
from simic.registry.recording import Evidence
from simic.runtime.settings import Home
from simic.trust.keys import Keyring
from simic.trust.seal import seal
from simic.validation.gate import decide
from simic.validation.report import OPPONENTS, episodes_planned, judging_hosts, validate

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CONFIG = RunConfig(
    world=WorldConfig(horizon=6, workers=1), trial=TrialConfig(hosts_per_family=2, bootstrap_samples=200)
)
PROVENANCE = Provenance("0.1.0+0", "c" * 64, 0)


@pytest.fixture
def place(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Home:
    return furnished_home(tmp_path / "place", tmp_path_factory)


def untrained(place: Home, seed: int) -> TrainingReport:
    """A policy that knows nothing, sealed."""
    config = NetworkConfig(hidden=8, layers=1)
    network = PolicyNetwork(NetworkShape.of(config, blueprint_names()), seed=seed)
    card = describe(
        network, config, set_name="benchmark", snapshot_digest=None, code_version="0.1.0+0", config_digest="c" * 64
    )
    path = place.policies / f"untrained-{seed}"
    save_policy(path, network, card)
    digest = seal(path, SIGNER).digest
    return evidence_of(place, path, digest).training.model_copy(update={"metrics": {}})


def judge(
    place: Home, training: TrainingReport, champion: TrainingReport | None = None, **world: Any
) -> ValidationReport:
    return validate(
        training,
        None if champion is None else Path(champion.path),
        CONFIG.model_copy(update={"world": CONFIG.world.model_copy(update=world)}),
        keyring=place.keys,
        figures=place.runs / "figures",
        provenance=PROVENANCE,
        clock=lambda: NOW,
    )


def test_a_policy_that_knows_nothing_is_tried_judged_recorded_and_turned_away(place: Home) -> None:
    training = untrained(place, 0)
    report = judge(place, training)
    assert [trial.controller for trial in report.trials.controllers] == [*OPPONENTS, "candidate"]
    assert set(report.differences) == set(OPPONENTS)
    assert report.probes == {"determinism_mismatches": 0.0}
    assert {split_of("benchmark", key) for key in report.trials.host_keys} == {Split.TEST}
    assert all(Path(path).read_bytes().startswith(b"\x89PNG") for path in report.figures.values())
    assert set(report.figures) == {"paired_differences", "action_timeline", "learning_curves"}

    decision = decide(report, CONFIG.gate, min_commit_rate=0.02, provenance=PROVENANCE, now=NOW)
    verdicts = {criterion.name: criterion.verdict for criterion in decision.criteria}
    assert not decision.accepted
    assert verdicts["episodes"] is Verdict.FAIL
    assert verdicts["return_over_blind"] is Verdict.MISSING
    assert verdicts["determinism_mismatches"] is Verdict.PASS
    assert verdicts["commit_rate"] is Verdict.MISSING

    registry = Registry(place, Keyring(place.keys), clock=lambda: NOW)
    snapshot = evidence_of(place, Path(training.path), training.digest).snapshot
    version = registry.record(Evidence(training, report, decision, snapshot, CONFIG))
    with pytest.raises(GateRejected):
        registry.promote(version, decision)
    assert registry.champion() is None


def test_the_champion_as_its_own_candidate_differs_by_nothing_and_is_turned_away(place: Home) -> None:
    training = untrained(place, 0)
    report = judge(place, training, training)
    assert report.champion_digest == training.digest
    difference = report.differences["champion"]
    assert (difference.mean, difference.lower, difference.upper) == (0.0, 0.0, 0.0)
    gate = CONFIG.gate.model_copy(update={"min_episodes": 1})
    decision = decide(report, gate, min_commit_rate=0.0, provenance=PROVENANCE, now=NOW)
    verdicts = {criterion.name: criterion.verdict for criterion in decision.criteria}
    assert verdicts["return_over_champion"] is Verdict.FAIL
    assert verdicts["test_accuracy_regression"] is Verdict.PASS
    assert not decision.accepted


def test_judging_again_gives_the_same_evidence_and_the_same_decision(place: Home) -> None:
    training = untrained(place, 1)
    first, second = judge(place, training), judge(place, training, chunk=3)
    assert first.trials.controllers == second.trials.controllers
    assert first.differences == second.differences
    digests = {
        decide(report, CONFIG.gate, min_commit_rate=0.02, provenance=PROVENANCE, now=NOW).digest
        for report in (first, second)
    }
    assert len(digests) == 1


def test_l14_no_policy_is_judged_on_the_hosts_that_selected_its_predecessor(place: Home) -> None:
    world, trial = CONFIG.world, CONFIG.trial
    one, other = (judging_hosts(digest * 64, world, trial) for digest in "0f")
    assert one == judging_hosts("0" * 64, world, trial)
    assert not {host.key for host in one} & {host.key for host in other}
    families = [host.family for host in one]
    assert {families.count(family) for family in families} == {trial.hosts_per_family}
    assert episodes_planned(world, trial, has_champion=True) == 7 * len(one)


def test_a_policy_that_was_touched_is_not_even_tried(place: Home) -> None:
    training = untrained(place, 0)
    weights = Path(training.path) / "weights.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(bytes(data))
    with pytest.raises(IntegrityError, match="differ from what was sealed"):
        judge(place, training)
