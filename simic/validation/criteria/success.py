"""``success``: most hosts end at least as accurate as if nothing had grown."""

from __future__ import annotations

from collections.abc import Iterator

from simic.contracts.names import CANDIDATE, WAIT
from simic.contracts.results.gate import Criterion
from simic.validation.criterion import TRIALS, Case, line

__all__ = ["EVIDENCE", "NAME", "ORDER", "SUMMARY", "judge"]

NAME = "success"
SUMMARY = "share of held-out hosts that end as accurate as never growing or more so, at least `gate.min_success`"
ORDER = 230
EVIDENCE = TRIALS


def judge(case: Case) -> Iterator[Criterion]:
    """Yield the criterion."""
    rows = {row.controller: row.validation_accuracies for row in case.report.trials.controllers}
    ours, theirs, count = rows.get(CANDIDATE, []), rows.get(WAIT, []), len(case.report.trials.host_keys)
    evidence = f"share of {count} held-out hosts whose committed network is at least as accurate as never growing"
    share = None
    if count and len(ours) == len(theirs) == count:
        share = sum(one >= other for one, other in zip(ours, theirs, strict=True)) / count
    yield line(NAME, share, ">=", case.gate.min_success, evidence)
