"""What a criterion of the gate reads, and the line that it adds to a decision.

A value that is missing or not finite is MISSING, and MISSING rejects as FAIL does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from simic.contracts.names import ALONE, CANDIDATE, CHAMPION, KARN, MODEL_NAME, WAIT
from simic.contracts.results.gate import Criterion, ValidationReport, Verdict
from simic.contracts.results.judgements import Judgement
from simic.contracts.results.log_evidence import EvidenceKind, LogSupport
from simic.contracts.results.trials import ControllerTrial, Estimate
from simic.contracts.settings.run import GateConfig, TrialConfig

__all__ = ["POLICIES", "REPORTS", "TRIALS", "Case", "Comparison", "interval_text", "line"]

TRIALS: EvidenceKind = "trials"
"""Value of ``EVIDENCE`` of a criterion that judges grown episodes alone. One without ``EVIDENCE`` judges both kinds."""
REPORTS: EvidenceKind = "reports"
"""Value of ``EVIDENCE`` of a criterion that judges logged episodes alone."""

POLICIES = (MODEL_NAME,)
"""Value of ``MODELS`` of a criterion that judges policies alone. One without ``MODELS`` judges Karn too."""

Comparison = Literal[">", ">=", "<", "<="]
_HOLDS: Mapping[Comparison, Callable[[float, float], bool]] = {
    ">": lambda value, bound: value > bound,
    ">=": lambda value, bound: value >= bound,
    "<": lambda value, bound: value < bound,
    "<=": lambda value, bound: value <= bound,
}


class Case(NamedTuple):
    """The evidence about a candidate, and the settings that it is judged by."""

    report: ValidationReport
    gate: GateConfig
    trial: TrialConfig
    """Settings of the report's intervals."""
    judgement: Judgement
    """That for which the evidence was collected, with its level."""
    min_commit_rate: float
    """Least ``commit_rate``, the bound at which training stops."""
    config_digest: str
    """Configuration of the gate."""

    @property
    def candidate(self) -> ControllerTrial | None:
        """Return the candidate's row of the trials."""
        return next((row for row in self.report.trials.controllers if row.controller == CANDIDATE), None)

    @property
    def is_karn(self) -> bool:
        """Return whether the candidate is the champion consulting a Karn."""
        return self.report.model == KARN

    @property
    def champions(self) -> list[str]:
        """Return the rows that the candidate is to replace: for Karn the champion alone, and with the present Karn."""
        present = [] if self.report.champion_digest is None else [CHAMPION]
        return [ALONE, *present] if self.is_karn else present

    @property
    def hosts(self) -> list[tuple[str, int]]:
        """Return set and key of each host of the evidence."""
        report = self.report
        if report.evidence == REPORTS:
            return [] if report.log is None else list(zip(report.log.sets, report.log.host_keys, strict=True))
        return [(report.trials.set, key) for key in report.trials.host_keys]

    @property
    def log_support(self) -> dict[str, LogSupport | None]:
        """Return how much of the log speaks about each policy whose return is estimated from it."""
        names = [CANDIDATE, WAIT] + ([CHAMPION] if self.report.champion_digest is not None else [])
        return {name: None if self.report.log is None else self.report.log.support.get(name) for name in names}


def line(
    name: str,
    value: float | None,
    comparison: Comparison,
    bound: float,
    evidence: str,
    detectable: float | None = None,
) -> Criterion:
    """Return a criterion that holds if ``value`` compares with ``bound``; a value that is not finite is missing."""
    if value is None or not math.isfinite(value):
        found = "nothing" if value is None else str(value)
        text = f"{evidence}; found {found}; criterion not met"
        return Criterion(
            name=name, value=None, bound=bound, comparison=comparison, verdict=Verdict.MISSING, evidence=text
        )
    verdict = Verdict.PASS if _HOLDS[comparison](value, bound) else Verdict.FAIL
    return Criterion(
        name=name,
        value=float(value),
        bound=bound,
        comparison=comparison,
        verdict=verdict,
        evidence=evidence,
        detectable=detectable,
    )


def interval_text(estimate: Estimate) -> str:
    """Return the interval of a paired difference with its confidence and number of hosts."""
    interval = f"[{estimate.lower:+.2f}, {estimate.upper:+.2f}] points at {100 * estimate.confidence:g}%"
    return f"{interval} over {estimate.n} hosts"
