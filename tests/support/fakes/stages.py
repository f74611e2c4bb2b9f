"""Functions that replace the long stages and note what they were asked; everything around them is real.

Each call adds a line to ``calls.txt`` in the home, so that a killed process leaves a trace of how far it came.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from simic.app import artifacts, promotion
from simic.app.container import Container
from simic.app.policies import Policies
from simic.contracts.errors import TrainingError, TransientError
from simic.contracts.policy_update import PolicyUpdate, ValidationSummary
from simic.contracts.results.gate import GateDecision, ValidationReport
from simic.contracts.results.receipts import (
    CollectionReceipt,
    IngestReceipt,
    PolicyVersion,
    PublicationReceipt,
    Receipt,
    SnapshotManifest,
    TrainingReport,
)
from simic.contracts.results.trials import SeedChoice, TrialReport
from simic.registry.mlflow_run import CandidateRecord
from simic.trust.canonical import digest_of
from simic.trust.seal import seal
from simic.validation.training_seeds import choose, row_of
from support.builders.judged_candidates import evidence_of
from support.builders.judgements import begun
from support.builders.validation_reports import trials_of, validation_of

KILL, FAIL, BREAK, STUMBLE, REJECT = (f"STAND_IN_{what}" for what in ("KILL", "FAIL", "BREAK", "STUMBLE", "REJECT"))
"""Environment: the call (such as ``train 1``) at which to be killed, to fail, to meet a bug, or to stumble; whether to
reject."""


_REGISTRY = {name: getattr(promotion, name) for name in ("record", "promote", "publish")}
_CHAMPION_DIGEST = Policies.champion_digest


def calls(home: Path) -> list[str]:
    """What was asked of the stages so far, in order."""
    path = home / "calls.txt"
    return path.read_text().splitlines() if path.exists() else []


def install(patch: pytest.MonkeyPatch, *, has_registry: bool = True) -> None:
    """Replace the long stages; without a registry also those that record, promote and publish."""
    patch.setattr("simic.app.container.code_version", lambda: "0.1.0+000000000000")
    for name in ("collect_round", "train_round", "validate", "try_further"):
        patch.setattr(f"simic.app.training.{name}", globals()[name])
    patch.setattr("simic.app.runs.check_baselines", check_baselines)
    patch.setattr("simic.app.training_seeds.choose_seed", choose_seed)
    for name in ("ingest", "curate"):
        patch.setattr(f"simic.app.data.{name}", globals()[name])
    patch.setattr("tasks.stages.artifacts_are_intact", artifacts_are_intact)
    for name, real in _REGISTRY.items():
        patch.setattr(f"simic.app.promotion.{name}", real if has_registry else globals()[name])
    champion_digest = _CHAMPION_DIGEST if has_registry else lambda _policies: None
    patch.setattr("simic.app.policies.Policies.champion_digest", champion_digest)


def check_baselines(container: Container, *, has_gate: bool) -> None:
    """Nobody is compared with."""


def collect_round(
    container: Container,
    number: int,
    policy: TrainingReport | None,
    earlier_runs: int = 0,
    set_name: str = "benchmark",
) -> CollectionReceipt:
    on = "" if set_name == "benchmark" else f" {set_name}"
    _ask(container, f"collect {number} {policy.digest[:6] if policy else 'explore'}{on}")
    digest = policy.digest if policy else None
    return container.save_receipt(
        CollectionReceipt(
            **_common(container), controller="explore", policy_digest=digest, set=set_name,
            host_keys_digest=digest_of([earlier_runs, number]), episodes=1, reports=20,
            reports_digest=digest_of(["reports", number, digest, set_name]), governor_events=0, actions={"WAIT": 20},
            mean_return=1.0, test_accuracy=0.5,
        )
    )  # fmt: skip


def ingest(container: Container) -> IngestReceipt:
    _ask(container, "ingest")
    count = sum(line.startswith("ingest") for line in calls(container.home.root))
    return container.save_receipt(
        IngestReceipt(
            **_common(container), read=20, landed=20, duplicate=0, quarantined=0, reasons={}, parts=[],
            ledger_digest=digest_of(["ledger", count]), ledger_rows=20 * count,
        )
    )  # fmt: skip


def curate(container: Container) -> SnapshotManifest:
    _ask(container, "curate")
    count = sum(line.startswith("curate") for line in calls(container.home.root))
    return container.save_receipt(
        _evidence(container, count).snapshot.model_copy(update={"digest": digest_of(["snapshot", count])})
    )


def train_round(
    container: Container,
    snapshot: SnapshotManifest,
    previous: TrainingReport | None,
    champion: str | None,
    training_seed: int | None = None,
) -> TrainingReport:
    start = previous.digest if previous else champion
    seed = "" if training_seed is None else f" seed {training_seed}"
    _ask(container, f"train {snapshot.digest[:6]} from {start[:6] if start else 'nothing'}{seed}")
    report = _evidence(container, len(calls(container.home.root))).training
    own = {"snapshot_digest": snapshot.digest, "start_digest": start, **_settings(container)}
    own["seed"] = container.seed if training_seed is None else training_seed
    return container.save_receipt(report.model_copy(update=own))


def choose_seed(container: Container, trained: Sequence[TrainingReport]) -> SeedChoice:
    """The second training is the best."""
    _ask(container, f"choose among {' '.join(one.digest[:6] for one in trained)}")
    means = {"wait": 5.0, **{row_of(one): 7.0 + (one is trained[1]) for one in trained}}
    report = trials_of(means, container.config, container.provenance, 20)
    chosen = choose(trained, report, "trials/x.json", container.clock(), container.provenance)
    return container.save_receipt(chosen)


def validate(
    container: Container, training: TrainingReport, champion: str | None, further: Sequence[TrialReport]
) -> ValidationReport:
    _ask(container, f"validate {training.digest[:6]} against {champion[:6] if champion else 'nobody'}")
    found = evidence_of(container.home, Path(training.path), training.digest, champion=champion)
    report = validation_of(
        training.model_copy(update={"metrics": {"commit_rate": 0.8, "mean_ratio": 0.9}}),
        container.config,
        container.provenance,
        margin=-10.0 if os.environ.get(REJECT) else 10.0,
        champion=champion,
        ordinal=begun(container, training.digest, champion),
        count=20,
        figures=found.validation.figures,
    )
    trials = report.trials.model_copy(update={"plans_digest": digest_of("a plan book")})
    return container.save_receipt(report.model_copy(update={"trials": trials, "further": list(further)}))


def try_further(container: Container, policy: TrainingReport, champion: str | None, set_name: str) -> TrialReport:
    """The candidate does harm on ``compound`` alone."""
    _ask(container, f"further {set_name} {policy.digest[:6]}")
    means = {"wait": 5.0, "heuristic": 6.0, "candidate": -20.0 if set_name == "compound" else 8.0}
    return container.save_receipt(
        trials_of(
            means,
            container.config,
            container.provenance,
            20,
            set_name=set_name,
            policy=policy.digest,
            ordinal=begun(container, policy.digest, champion),
        )
    )


def artifacts_are_intact(container: Container, receipt: Receipt) -> bool:
    return isinstance(receipt, SnapshotManifest) or artifacts.artifacts_are_intact(container, receipt)


def _settings(container: Container) -> dict[str, Any]:
    return {"config_digest": container.provenance.config_digest}


def _common(container: Container) -> dict[str, Any]:
    return {**container.provenance._asdict(), "started_at": container.clock(), "finished_at": container.clock()}


def _evidence(container: Container, count: int) -> CandidateRecord:
    directory = container.home.policies / f"stand-in-{count}"
    if not directory.exists():
        directory.mkdir(parents=True)
        (directory / "weights.safetensors").write_bytes(bytes([count]) * 64)
        (directory / "card.json").write_text(CARD)
        seal(directory, container.signer)
    return evidence_of(container.home, directory, container.policies.check(directory))


def _ask(container: Container, call: str) -> None:
    """Announce and note the call, then meet whatever fate the environment holds for it."""
    with container.progress.task(call.split()[0], 1):
        pass
    before = calls(container.home.root)
    with (container.home.root / "calls.txt").open("a") as log:
        log.write(call + "\n")
    stage = f"{call.split()[0]} {1 + sum(line.split()[0] == call.split()[0] for line in before)}"
    if os.environ.get(KILL) == stage:
        os.kill(os.getpid(), signal.SIGKILL)
    if os.environ.get(FAIL) == stage:
        raise TrainingError("a policy that never commits")
    if os.environ.get(BREAK) == stage:
        raise KeyError("a bug")
    if os.environ.get(STUMBLE) == stage:
        raise TransientError("the disk is busy")


def record(
    container: Container, report: ValidationReport, decision: GateDecision, _flow_run: str | None = None
) -> PolicyVersion:
    _ask(container, "record")
    return PolicyVersion(
        **_common(container), name="tamiyo", number=1, semantic_version="1.0.0", digest=report.policy_digest,
        reference="models:/tamiyo/1", aliases=["candidate"], previous=None, snapshot_digest=report.snapshot_digest,
        gate_digest=decision.digest, mlflow_run_id="0" * 32,
    )  # fmt: skip


def promote(
    container: Container, candidate: PolicyVersion, report: ValidationReport, decision: GateDecision
) -> PolicyVersion:
    _ask(container, "promote")
    return candidate


def publish(container: Container, version: PolicyVersion) -> PublicationReceipt:
    _ask(container, "publish")
    summary = ValidationSummary(
        episodes=20, return_over_wait=5.0, lower_bound=4.0, confidence=0.95, gate_digest=version.gate_digest
    )
    update = PolicyUpdate(
        policy_name="tamiyo", version="1.0.0", digest=version.digest, reference=version.reference,
        targets=["tamiyo"], validation=summary, issued_at=container.clock(), key_id="0" * 16,
    )  # fmt: skip
    return PublicationReceipt(**_common(container), update=update, event_id="0" * 32, delivered=True)


CARD = (
    '{"schema_version": 1, "architecture": "hetero-sage-2", "network": {"hidden": 48, "layers": 2, '
    '"exploration": 0.02}, "feature_version": "0123456789abcdef", "blueprints": ["gate", "norm"]}'
)
