"""Validation of one candidate from logged episodes of held-out hosts; no host is grown."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from simic.contracts.controllers import ControllerSpec
from simic.contracts.results.gate import ValidationReport
from simic.contracts.results.log_evidence import LogEvidence
from simic.contracts.results.receipts import Provenance, TrainingReport
from simic.contracts.results.trials import TrialReport
from simic.contracts.settings.run import RunConfig
from simic.contracts.state import HostIdentity
from simic.runtime.clock import Clock
from simic.validation.criterion import REPORTS
from simic.validation.log_evidence import log_differences
from simic.validation.plots import learning_curves
from simic.validation.probing import States, Subject
from simic.validation.promotion_gate import run_probes

__all__ = ["LoggedCase", "validate_from_log"]


class LoggedCase(NamedTuple):
    """A candidate, and what a log says about it."""

    training: TrainingReport
    spec: ControllerSpec
    """The candidate as it acts in trials."""
    champion_digest: str | None
    set: str
    """Sets of the hosts."""
    evidence: LogEvidence
    hosts: tuple[HostIdentity, ...]
    states: States
    """Logged states, on which the candidate is probed."""


def validate_from_log(
    case: LoggedCase,
    config: RunConfig,
    *,
    ordinal: int,
    figures: Path,
    provenance: Provenance,
    started_at: datetime,
    clock: Clock,
) -> ValidationReport:
    """Return the report of a candidate whose evidence is a log; its trials have no hosts."""
    training = case.training
    subject = Subject(case.spec, case.hosts, [case.states], 0, training, config.gate, started_at)
    curves = Path(training.curves_path)
    drawn = {}
    if curves.is_file():
        drawn["learning_curves"] = str(learning_curves(curves, figures / "learning_curves.png"))
    return ValidationReport(
        **provenance._asdict(),
        started_at=started_at,
        finished_at=clock(),
        ordinal=ordinal,
        policy_digest=training.digest,
        champion_digest=case.champion_digest,
        snapshot_digest=training.snapshot_digest,
        evidence=REPORTS,
        trials=TrialReport(
            **provenance._asdict(),
            started_at=started_at,
            finished_at=clock(),
            set=case.set,
            host_keys=[],
            families=[],
            controllers=[],
            plans_digest=None,
            policy_digest=training.digest,
        ),
        differences=log_differences(case.evidence, config.trial.confidence),
        training_metrics=training.metrics,
        figures=drawn,
        probes=run_probes(subject),
        log=case.evidence,
    )
