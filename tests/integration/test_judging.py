"""From a sealed policy to a decision on record: real hosts, a real network, a real registry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from support.builders.judged_candidates import SIGNER, evidence_of
from support.builders.judgements import judgement
from support.homes.mlflow_databases import furnished_home

from simic.contracts.actions import Op
from simic.contracts.batches import OP_INDEX
from simic.contracts.controllers import COMPARISON_CONTROLLERS
from simic.contracts.errors import GateRejectedError, IntegrityError
from simic.contracts.results.gate import GateDecision, ValidationReport, Verdict
from simic.contracts.results.receipts import Provenance, TrainingReport
from simic.contracts.settings.network import NetworkConfig
from simic.contracts.settings.run import GateConfig, RunConfig, TrialConfig, WorldConfig
from simic.contracts.splits import Split, split_of
from simic.controllers.network import NetworkShape, PolicyNetwork
from simic.controllers.policy_files import describe, save_policy
from simic.hosts.plugins import blueprint_names
from simic.registry.mlflow_run import CandidateRecord
from simic.registry.registry import Registry
from simic.runtime.home import Home
from simic.trust.keys import Keyring
from simic.trust.seal import seal
from simic.validation.episodes import Reporter
from simic.validation.promotion_gate import decide, rejection_message
from simic.validation.report import JudgingRun, episodes_planned, held_out_count, held_out_hosts, validate

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CONFIG = RunConfig(
    world=WorldConfig(horizon=6, workers=1),
    trial=TrialConfig(hosts_per_family=2, bootstrap_samples=200),
    gate=GateConfig(min_episodes=10),
)
PROVENANCE = Provenance("0.1.0+0", "c" * 64, 0)


@pytest.fixture
def place(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Home:
    return furnished_home(tmp_path / "place", tmp_path_factory)


def untrained(place: Home, seed: int, change: Callable[[PolicyNetwork], object] = id) -> TrainingReport:
    """A policy that knows nothing, sealed; ``change`` alters its weights before."""
    config = NetworkConfig(hidden=8, layers=1)
    network = PolicyNetwork(NetworkShape.of(config, blueprint_names()), seed=seed)
    with torch.no_grad():
        change(network)
    card = describe(
        network, config, set_name="benchmark", snapshot_digest=None, code_version="0.1.0+0", config_digest="c" * 64
    )
    path = place.policies / f"untrained-{seed}"
    save_policy(path, network, card)
    digest = seal(path, SIGNER).digest
    return evidence_of(place, path, digest).training.model_copy(update={"metrics": {}})


def judge(
    place: Home,
    training: TrainingReport,
    champion: TrainingReport | None = None,
    reporter: Reporter | None = None,
    **world: Any,
) -> ValidationReport:
    return validate(
        training,
        None if champion is None else Path(champion.path),
        CONFIG.model_copy(update={"world": CONFIG.world.model_copy(update=world)}),
        JudgingRun(1, place.keys, place.plans, place.runs / "figures", PROVENANCE, lambda: NOW, reporter=reporter),
        champion_digest=None if champion is None else champion.digest,
    )


def decided(report: ValidationReport, gate: GateConfig, min_commit_rate: float) -> GateDecision:
    return decide(
        report, gate, judgement=judgement(), trial=CONFIG.trial, min_commit_rate=min_commit_rate,
        provenance=PROVENANCE, now=NOW,
    )  # fmt: skip


class Judged(NamedTuple):
    """A policy that knows nothing, and the report about it."""

    place: Home
    training: TrainingReport
    report: ValidationReport
    landed: Counter[str]
    """Hosts whose episodes the reporter got, by controller."""


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    place = furnished_home(tmp_path_factory.mktemp("judged") / "place", tmp_path_factory)
    training, landed = untrained(place, 0), Counter[str]()
    report = judge(place, training, reporter=lambda arm, _, hosts, *_rest: landed.update({arm: len(hosts)}))
    return Judged(place, training, report, landed)


def test_a_policy_that_knows_nothing_is_tried_judged_recorded_and_turned_away(judged: Judged) -> None:
    place, training, report, landed = judged
    assert landed == {trial.controller: len(report.trials.host_keys) for trial in report.trials.controllers}
    assert [trial.controller for trial in report.trials.controllers] == [*COMPARISON_CONTROLLERS, "candidate"]
    assert set(report.differences) == set(COMPARISON_CONTROLLERS)
    assert len(report.probes) == 12 and all(probe.count for probe in report.probes.values())
    assert {name for name, probe in report.probes.items() if probe.value} <= {"policy_memory", "staleness"}
    assert {split_of("benchmark", key) for key in report.trials.host_keys} == {Split.TEST}
    assert all(Path(path).read_bytes().startswith(b"\x89PNG") for path in report.figures.values())
    assert set(report.figures) == {"paired_differences", "action_timeline", "learning_curves"}

    decision = decide(
        report,
        GateConfig(),
        judgement=judgement(),
        trial=CONFIG.trial,
        min_commit_rate=0.02,
        provenance=PROVENANCE,
        now=NOW,
    )
    verdicts = {criterion.name: criterion.verdict for criterion in decision.criteria}
    assert not decision.accepted
    assert verdicts["episodes"] is Verdict.FAIL
    assert verdicts["return_over_blind"] is Verdict.MISSING
    assert verdicts["determinism_mismatches"] is Verdict.PASS
    assert verdicts["commit_rate"] is Verdict.MISSING

    registry = Registry(place, Keyring(place.keys), signer=lambda: SIGNER, clock=lambda: NOW)
    snapshot = evidence_of(place, Path(training.path), training.digest).snapshot
    version = registry.record(CandidateRecord(training, report, decision, snapshot, CONFIG))
    with pytest.raises(GateRejectedError):
        registry.promote(version, report, decision)
    assert registry.champion() is None


def test_lf51_the_report_names_the_settings_in_which_the_plan_book_differs(judged: Judged) -> None:
    """The shipped book was searched on episodes of 20 epochs."""
    assert judged.report.trials.book_differences == ["world.horizon 6 instead of 20"]


def test_another_sealed_policy_in_the_place_of_the_candidate_or_the_champion_is_not_judged(place: Home) -> None:
    """Both are whole and sealed by a trusted key; only the digest tells them apart."""
    training, other = untrained(place, 0), untrained(place, 1)
    with pytest.raises(IntegrityError, match="expected digest"):
        judge(place, training.model_copy(update={"path": other.path}))
    with pytest.raises(IntegrityError, match="expected digest"):
        judge(place, training, champion=other.model_copy(update={"path": training.path}))


def test_the_champion_as_its_own_candidate_differs_by_nothing_and_is_turned_away(place: Home) -> None:
    training = untrained(place, 0)
    report = judge(place, training, training)
    assert report.champion_digest == training.digest
    difference = report.differences["champion"]
    assert (difference.mean, difference.lower, difference.upper) == (0.0, 0.0, 0.0)
    gate = CONFIG.gate.model_copy(update={"min_episodes": 1})
    decision = decided(report, gate, 0.0)
    verdicts = {criterion.name: criterion.verdict for criterion in decision.criteria}
    assert verdicts["return_over_champion"] is Verdict.FAIL
    assert verdicts["test_accuracy_regression_to_champion"] is Verdict.PASS
    assert not decision.accepted


def idle(network: PolicyNetwork) -> None:
    last = network.op_head[-1]
    last.weight.zero_()
    last.bias.copy_(100.0 * (torch.arange(len(last.bias)) == OP_INDEX[Op.WAIT]))


def overflowing(network: PolicyNetwork) -> None:
    """Finite weights whose products are not."""
    network.op_head[-1].weight.fill_(3e38)


@pytest.mark.parametrize(("change", "reason"), [(idle, "return_over_wait"), (overflowing, "finite_outputs")])
def test_a_policy_that_waits_or_gives_nan_is_turned_away_for_that(
    place: Home, change: Callable[[PolicyNetwork], None], reason: str
) -> None:
    """Both wait on every host; the one without a probability for it fails every state of the probe."""
    report = judge(place, untrained(place, 0, change))
    candidate = next(row for row in report.trials.controllers if row.controller == "candidate")
    assert (candidate.committed_parameters, candidate.illegal_actions) == (0.0, 0)
    decision = decided(report, CONFIG.gate, 0.0)
    verdicts = {criterion.name: criterion.verdict for criterion in decision.criteria}
    assert verdicts["return_over_wait"] is Verdict.FAIL
    assert verdicts[reason] is Verdict.FAIL and reason in rejection_message(decision)
    assert (verdicts["finite_outputs"] is Verdict.PASS) == (change is idle)


def test_judging_again_gives_the_same_evidence_and_the_same_decision(judged: Judged) -> None:
    first, second = judged.report, judge(judged.place, judged.training, chunk=3)
    assert first.trials.controllers == second.trials.controllers
    assert first.differences == second.differences
    digests = {decided(report, CONFIG.gate, 0.02).digest for report in (first, second)}
    assert len(digests) == 1


def test_l14_no_policy_is_judged_on_the_hosts_that_selected_its_predecessor(place: Home) -> None:
    world, trial = CONFIG.world, CONFIG.trial
    one, other = (held_out_hosts(ordinal, world, trial, 10) for ordinal in (1, 2))
    assert one == held_out_hosts(1, world, trial, 10)
    assert not {host.key for host in one} & {host.key for host in other}
    families = [host.family for host in one]
    assert {families.count(family) for family in families} == {trial.hosts_per_family}
    assert episodes_planned(CONFIG, place.plans, has_champion=True) == 8 * len(one)


def test_a_policy_that_was_touched_is_not_even_tried(place: Home) -> None:
    training = untrained(place, 0)
    weights = Path(training.path) / "weights.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(bytes(data))
    with pytest.raises(IntegrityError, match="differ from what was sealed"):
        judge(place, training)


@pytest.mark.parametrize(
    ("set_name", "per_family", "least", "hosts"),
    [("benchmark", 32, 150, 160), ("benchmark", 2, 11, 15), ("cap", 16, 100, 100), ("cap", 16, 10, 16)],
)
def test_hosts_grow_until_the_gate_has_enough_of_them(set_name: str, per_family: int, least: int, hosts: int) -> None:
    """A set of one family with 16 hosts could never pass a gate that asks for 100."""
    world, trial = WorldConfig(set=set_name), TrialConfig(hosts_per_family=per_family)
    found = held_out_hosts(5, world, trial, least)
    assert len({host.key for host in found}) == held_out_count(world, trial, least) == hosts
    families = [host.family for host in found]
    assert len({families.count(family) for family in families}) == 1
