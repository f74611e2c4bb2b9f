"""``log_cut_off``: the log has the episodes that a policy would end badly.

An episode that crashes leaves no return, so an estimate from the others does not see what it lost.
"""

from __future__ import annotations

from collections.abc import Iterator

from simic.contracts.receipts import Criterion
from simic.validation.criterion import REPORTS, Case, line
from simic.validation.log_evidence import CUT_OFF

__all__ = ["EVIDENCE", "NAME", "ORDER", "SUMMARY", "judge"]

NAME = "log_cut_off"
SUMMARY = "share of the held-out episodes that were cut off, at most 0.01"
ORDER = 245
EVIDENCE = REPORTS
MOST_CUT_OFF = 0.01
REMEDY = (
    "A crashed training and one that still runs look alike. Land the reports of running trainings when they end, then "
    "run `simic curate`"
)


def judge(case: Case) -> Iterator[Criterion]:
    """Yield the criterion; a share that nobody counted is missing."""
    log = case.report.log
    evidence = "share of the held-out episodes of these sets that were cut off"
    if log is not None and log.cut_off is not None:
        kinds = [
            f"{count} {why.removeprefix(CUT_OFF)}" for why, count in log.left_out.items() if why.startswith(CUT_OFF)
        ]
        evidence += f": {', '.join(kinds)}. {REMEDY}" if kinds else ": none"
    yield line(NAME, None if log is None else log.cut_off, "<=", MOST_CUT_OFF, evidence)
