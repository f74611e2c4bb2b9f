"""An App whose long stages only pretend, and tell what they were asked; everything around them is real.

Each call adds a line to ``calls.txt`` in the home, so that a killed process leaves a trace of how far it came.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.judged import evidence_of

from simic.app import App
from simic.contracts.errors import TrainingFailure, TransientError
from simic.contracts.policy_update import PolicyUpdate, ValidationSummary
from simic.contracts.receipts import (
    CollectionReceipt,
    GateDecision,
    IngestReceipt,
    PolicyVersion,
    PublicationReceipt,
    SnapshotManifest,
    TrainingReport,
    ValidationReport,
)
from simic.contracts.splits import Split
from simic.hosts.keys import draw_keys
from simic.registry.recording import Evidence
from simic.trust.canonical import digest_of
from simic.trust.seal import seal

KILL, FAIL, BREAK, STUMBLE, REJECT = (f"STAND_IN_{what}" for what in ("KILL", "FAIL", "BREAK", "STUMBLE", "REJECT"))
"""Environment: the call (such as ``train 1``) at which to be killed, to fail, to meet a bug, or to stumble; whether to
reject."""


def calls(home: Path) -> list[str]:
    """What was asked of the stages so far, in order."""
    path = home / "calls.txt"
    return path.read_text().splitlines() if path.exists() else []


class StandInApp(App):
    """Stages in no time, with the real registry behind them."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.provenance = self.provenance._replace(code_version="0.1.0+000000000000")

    def check_baselines(self) -> None:
        """Nobody is compared with."""

    def collect_round(self, number: int, policy: TrainingReport | None, earlier_runs: int = 0) -> CollectionReceipt:
        self._ask(f"collect {number} {policy.digest[:6] if policy else 'explore'}")
        digest = policy.digest if policy else None
        return self.keep(
            CollectionReceipt(
                **self._common(), controller="explore", policy_digest=digest, set="benchmark",
                host_keys_digest=digest_of([earlier_runs, number]), episodes=1, reports=20,
                reports_digest=digest_of(["reports", number, digest]), governor_events=0, actions={"WAIT": 20},
                mean_return=1.0, test_accuracy=0.5,
            )
        )  # fmt: skip

    def ingest(self) -> IngestReceipt:
        self._ask("ingest")
        count = sum(line.startswith("ingest") for line in calls(self.home.root))
        return self.keep(
            IngestReceipt(
                **self._common(), read=20, landed=20, duplicate=0, quarantined=0, reasons={}, parts=[],
                ledger_digest=digest_of(["ledger", count]), ledger_rows=20 * count,
            )
        )  # fmt: skip

    def curate(self) -> SnapshotManifest:
        self._ask("curate")
        count = sum(line.startswith("curate") for line in calls(self.home.root))
        return self.keep(self._evidence(count).snapshot.model_copy(update={"digest": digest_of(["snapshot", count])}))

    def train_round(
        self, snapshot: SnapshotManifest, previous: TrainingReport | None, champion: str | None
    ) -> TrainingReport:
        start = previous.digest if previous else champion
        self._ask(f"train {snapshot.digest[:6]} from {start[:6] if start else 'nothing'}")
        report = self._evidence(len(calls(self.home.root))).training
        own = {"snapshot_digest": snapshot.digest, "start_digest": start, **self._settings()}
        return self.keep(report.model_copy(update=own))

    def validate(self, training: TrainingReport, champion: str | None) -> ValidationReport:
        self._ask(f"validate {training.digest[:6]} against {champion[:6] if champion else 'nobody'}")
        found = evidence_of(self.home, Path(training.path), training.digest, champion=champion)
        margin = -10.0 if os.environ.get(REJECT) else 10.0
        rivals = ("wait", "random", "heuristic", "blind") + (("champion",) if champion else ())
        estimate = found.validation.differences["wait"]
        shifted = estimate.model_copy(update={"mean": margin, "lower": margin - 1, "upper": margin + 1})
        rows = [row.model_copy(update={"episodes": 20}) for row in found.validation.trials.controllers]
        named = [rows[0].model_copy(update={"controller": "champion", "over_wait": shifted})] if champion else []
        tried = {"controllers": [*rows, *named], "host_keys": HELD_OUT, **self._settings()}
        trials = found.validation.trials.model_copy(update=tried)
        return self.keep(
            found.validation.model_copy(
                update={
                    **self._settings(),
                    "snapshot_digest": training.snapshot_digest,
                    "differences": dict.fromkeys(rivals, shifted),
                    "trials": trials,
                    "training_metrics": {"commit_rate": 0.8, "mean_ratio": 0.9},
                    "probes": {"determinism_mismatches": 0.0},
                }
            )
        )

    def is_intact(self, receipt: object) -> bool:
        return True if isinstance(receipt, SnapshotManifest) else super().is_intact(receipt)  # type: ignore[arg-type]

    def _settings(self) -> dict[str, str]:
        return {"config_digest": self.provenance.config_digest}

    def _common(self) -> dict[str, Any]:
        return {**self.provenance._asdict(), "started_at": self.clock(), "finished_at": self.clock()}

    def _evidence(self, count: int) -> Evidence:
        directory = self.home.policies / f"stand-in-{count}"
        if not directory.exists():
            directory.mkdir(parents=True)
            (directory / "weights.safetensors").write_bytes(bytes([count]) * 64)
            (directory / "card.json").write_text(CARD)
            seal(directory, self.signer)
        return evidence_of(self.home, directory, self.policies.check(directory))

    def _ask(self, call: str) -> None:
        """Announce and note the call, then meet whatever fate the environment holds for it."""
        with self.progress.task(call.split()[0], 1):
            pass
        before = calls(self.home.root)
        with (self.home.root / "calls.txt").open("a") as log:
            log.write(call + "\n")
        stage = f"{call.split()[0]} {1 + sum(line.split()[0] == call.split()[0] for line in before)}"
        if os.environ.get(KILL) == stage:
            os.kill(os.getpid(), signal.SIGKILL)
        if os.environ.get(FAIL) == stage:
            raise TrainingFailure("a policy that never commits")
        if os.environ.get(BREAK) == stage:
            raise KeyError("a bug")
        if os.environ.get(STUMBLE) == stage:
            raise TransientError("the disk is busy")


class UnrecordedApp(StandInApp):
    """Nor is there a registry: for tests that look at stages only."""

    def champion_digest(self) -> str | None:
        return None

    def record(self, report: ValidationReport, decision: GateDecision) -> PolicyVersion:
        self._ask("record")
        return PolicyVersion(
            **self._common(), name="tamiyo", number=1, semantic_version="1.0.0", digest=report.policy_digest,
            reference="models:/tamiyo/1", aliases=["candidate"], previous=None, snapshot_digest=report.snapshot_digest,
            gate_digest=decision.digest, mlflow_run_id="0" * 32,
        )  # fmt: skip

    def promote(self, candidate: PolicyVersion, decision: GateDecision) -> PolicyVersion:
        self._ask("promote")
        return candidate

    def publish(self, version: PolicyVersion) -> PublicationReceipt:
        self._ask("publish")
        summary = ValidationSummary(
            episodes=20, return_over_wait=5.0, lower_bound=4.0, confidence=0.95, gate_digest=version.gate_digest
        )
        update = PolicyUpdate(
            policy_name="tamiyo", version="1.0.0", digest=version.digest, reference=version.reference,
            targets=["tamiyo"], validation=summary, issued_at=self.clock(), key_id="0" * 16,
        )  # fmt: skip
        return PublicationReceipt(**self._common(), update=update, event_id="0" * 32, delivered=True)


def _held_out(count: int) -> Sequence[int]:
    return draw_keys("benchmark", Split.TEST, count)


HELD_OUT = _held_out(20)
CARD = (
    '{"schema_version": 1, "architecture": "hetero-sage-2", "network": {"hidden": 48, "layers": 2, '
    '"exploration": 0.02}, "feature_version": "0123456789abcdef", "blueprints": ["gate", "norm"]}'
)
