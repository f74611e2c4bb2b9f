"""``log_mean_weight``: the log has the actions of the policies, and its probabilities are right.

The expected mean weight is the probability that an episode of the policy can occur in the log, 1 if all can.
"""

from __future__ import annotations

from collections.abc import Iterator

from simic.contracts.receipts import Criterion
from simic.validation.criterion import REPORTS, Case, line
from simic.validation.off_policy import LEAST_WEIGHT, weight_margin

__all__ = ["EVIDENCE", "NAME", "ORDER", "SUMMARY", "judge"]

NAME = "log_mean_weight"
SUMMARY = "mean weight of candidate, wait and champion: 1 within three standard errors, and 0.85 that much below it"
ORDER = 260
EVIDENCE = REPORTS


def judge(case: Case) -> Iterator[Criterion]:
    """Yield two criteria per policy: the distance from 1, over what passes, and the lower end."""
    for name, found in case.log_support.items():
        away = lower = None
        evidence = f"mean weight for {name}"
        if found is not None and found.mean_weight is not None and (margin := weight_margin(found)) > 0.0:
            away, lower = abs(found.mean_weight - 1.0) / margin, found.mean_weight - margin
            evidence += f", {found.mean_weight:.3f}; three standard errors are {margin:.2g}"
        text = f"distance from 1 over three standard errors: {evidence}"
        yield line(f"{NAME}_distance_{name}", away, "<=", 1.0, text)
        yield line(f"{NAME}_lower_{name}", lower, ">=", LEAST_WEIGHT, f"three standard errors below the {evidence}")
