"""``other_than_its_episodes``: means and intervals follow from the episodes in the report."""

from __future__ import annotations

from collections.abc import Iterator

from simic.contracts.names import CANDIDATE
from simic.contracts.results.gate import Criterion
from simic.validation.criterion import Case, line
from simic.validation.report_checks import disagreements

__all__ = ["NAME", "ORDER", "SUMMARY", "judge"]

NAME = "other_than_its_episodes"
SUMMARY = "means and intervals that do not follow from the returns per host in the same report: none"
ORDER = 130

_SHOWN = 3
"""Largest number of disagreements in a message."""


def judge(case: Case) -> Iterator[Criterion]:
    """Yield the criterion."""
    mismatches = disagreements(case.report, case.trial, CANDIDATE)
    evidence = "means and intervals that do not follow from the returns per host in the same report"
    if mismatches:
        evidence += f": {'; '.join(mismatches[:_SHOWN])}"
    yield line(NAME, float(len(mismatches)), "<=", 0.0, evidence)
