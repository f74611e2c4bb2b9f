"""``staleness``: the candidate is judged soon after it was trained."""

from __future__ import annotations

from collections.abc import Iterator

from simic.contracts.results.gate import Criterion, Probe
from simic.validation.criterion import Case, line
from simic.validation.probing import Subject

__all__ = ["NAME", "ORDER", "SUMMARY", "judge", "measure"]

NAME = "staleness"
SUMMARY = "whole days between the end of training and validation, at most `gate.max_candidate_age_days`"
ORDER = 580
_DAY_S = 86_400.0


def measure(subject: Subject) -> Probe:
    """Count whole days, so that the value does not depend on the second in which a run was resumed."""
    seconds = (subject.started_at - subject.training.finished_at).total_seconds()
    return Probe(value=float(abs(seconds) // _DAY_S), count=1)


def judge(case: Case) -> Iterator[Criterion]:
    """Yield the criterion."""
    probe = case.report.probes.get(NAME)
    evidence = "whole days between the end of training and the start of validation"
    yield line(
        NAME,
        probe.value if probe is not None and probe.count else None,
        "<=",
        case.gate.max_candidate_age_days,
        evidence,
    )
