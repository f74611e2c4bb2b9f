"""``log_cut_off``: the log has the episodes that a policy would end badly.

An episode that crashes leaves no return, so an estimate from the others does not see what it lost.
"""

from __future__ import annotations

from collections.abc import Iterator

from simic.contracts.names import short
from simic.contracts.results.gate import Criterion
from simic.validation.criterion import REPORTS, Case, line
from simic.validation.log_evidence import CUT_OFF
from simic.validation.off_policy import MOST_CUT_OFF

__all__ = ["EVIDENCE", "NAME", "ORDER", "SUMMARY", "judge"]

NAME = "log_cut_off"
SUMMARY = "share of the held-out episodes that were cut off, in each set, and of each controller in it: at most 0.01"
ORDER = 245
EVIDENCE = REPORTS
REMEDY = (
    "A crashed training and one that still runs look alike. Land the reports of running trainings when they end, then "
    "run `simic curate`. Raise curate.max_mb if some were evicted"
)


def judge(case: Case) -> Iterator[Criterion]:
    """Yield the criterion on the worst set or group; a share that nobody counted is missing."""
    log = case.report.log
    evidence = "share of the held-out episodes that were cut off, the largest over sets, and controllers in them"
    if log is None or log.cut_off is None or not log.groups:
        yield line(NAME, None, "<=", MOST_CUT_OFF, evidence)
        return
    shares = {"all controllers of a set": log.cut_off}
    shares |= {
        f"{short(group.behaviour)} on {group.set}": group.cut_off for group in log.groups if group.cut_off is not None
    }
    worst = max(shares, key=lambda name: shares[name])
    kinds = [f"{count} {why.removeprefix(CUT_OFF)}" for why, count in log.left_out.items() if why.startswith(CUT_OFF)]
    evidence += f", that of {worst}: {', '.join(kinds)}. {REMEDY}" if kinds else ": none"
    is_counted = all(group.cut_off is not None for group in log.groups)
    yield line(NAME, shares[worst] if is_counted else None, "<=", MOST_CUT_OFF, evidence)
