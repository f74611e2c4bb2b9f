"""``training_metrics_not_finite``: training ended with numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator

from simic.contracts.results.gate import Criterion
from simic.validation.criterion import Case, line

__all__ = ["NAME", "ORDER", "SUMMARY", "judge"]

NAME = "training_metrics_not_finite"
SUMMARY = "training metrics that are not finite: none"
ORDER = 600


def judge(case: Case) -> Iterator[Criterion]:
    """Yield the criterion."""
    metrics = case.report.training_metrics
    broken = sorted(name for name, value in metrics.items() if not math.isfinite(value))
    evidence = f"training metrics that are not finite, of {len(metrics)}" + (f": {broken}" if broken else "")
    yield line(NAME, float(len(broken)) if metrics else None, "<=", 0.0, evidence)
