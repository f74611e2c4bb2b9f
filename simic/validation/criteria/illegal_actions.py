"""``illegal_actions``: every action of the candidate was legal."""

from __future__ import annotations

from collections.abc import Iterator

from simic.contracts.results.gate import Criterion
from simic.validation.criterion import TRIALS, Case, line

__all__ = ["EVIDENCE", "NAME", "ORDER", "SUMMARY", "judge"]

NAME = "illegal_actions"
SUMMARY = "actions of the candidate that its masks forbid: none"
ORDER = 400
EVIDENCE = TRIALS


def judge(case: Case) -> Iterator[Criterion]:
    """Yield the criterion."""
    count = None if case.candidate is None else float(case.candidate.illegal_actions)
    yield line(NAME, count, "<=", 0.0, "actions of the candidate that its masks forbid")
