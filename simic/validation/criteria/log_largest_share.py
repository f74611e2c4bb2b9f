"""``log_largest_share``: no host decides an estimate."""

from __future__ import annotations

from collections.abc import Iterator

from simic.contracts.results.gate import Criterion
from simic.validation.criterion import REPORTS, Case, line
from simic.validation.off_policy import MOST_SHARE

__all__ = ["EVIDENCE", "NAME", "ORDER", "SUMMARY", "judge"]

NAME = "log_largest_share"
SUMMARY = "largest share of one host in all weight, for candidate, wait and champion, at most 0.1"
ORDER = 255
EVIDENCE = REPORTS


def judge(case: Case) -> Iterator[Criterion]:
    """Yield one criterion per policy."""
    for name, support in case.log_support.items():
        share = None if support is None else support.largest_share
        yield line(f"{NAME}_{name}", share, "<=", MOST_SHARE, f"largest share of one host in the weight of {name}")
