"""``episodes``: enough distinct held-out hosts."""

from __future__ import annotations

from collections.abc import Iterator

from simic.contracts.results.gate import Criterion
from simic.validation.criterion import REPORTS, Case, line

__all__ = ["NAME", "ORDER", "SUMMARY", "judge"]

NAME = "episodes"
SUMMARY = "distinct held-out hosts that the candidate was tried on, or of the log, at least `gate.min_episodes`"
ORDER = 140


def judge(case: Case) -> Iterator[Criterion]:
    """Yield the criterion."""
    hosts, candidate, set_name = len(set(case.hosts)), case.candidate, case.report.trials.set
    if case.report.evidence == REPORTS:
        count = float(hosts) if hosts else None
        evidence = f"distinct held-out hosts of set {set_name} in the log"
    else:
        count = None if candidate is None else float(min(candidate.episodes, hosts))
        evidence = f"distinct held-out hosts of set {set_name} the candidate was tried on"
    yield line(NAME, count, ">=", case.gate.min_episodes, evidence)
