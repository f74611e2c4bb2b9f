"""``determinism_mismatches``: a host ends with the same return beside other hosts."""

from __future__ import annotations

from collections.abc import Iterator

from simic.contracts.results.gate import Criterion, Probe
from simic.validation.criterion import TRIALS, Case
from simic.validation.probing import Subject, none_fail

__all__ = ["EVIDENCE", "NAME", "ORDER", "SUMMARY", "judge", "measure"]

NAME = "determinism_mismatches"
SUMMARY = "hosts whose return changes when the candidate grows them again beside other hosts: none"
ORDER = 500
EVIDENCE = TRIALS


def measure(subject: Subject) -> Probe:
    """Return how many of the hosts that were grown again ended with another return."""
    return Probe(value=float(subject.mismatches), count=len(subject.hosts))


def judge(case: Case) -> Iterator[Criterion]:
    """Yield the criterion."""
    yield none_fail(case, NAME, "hosts whose return changed when the candidate grew them again beside other hosts")
