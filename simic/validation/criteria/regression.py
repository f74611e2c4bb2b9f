"""``regression``: no metric regresses by more than the tolerated share, against wait and the champion.

The upper bound of the loss is judged. Small losses against one champion after the other could add up, those against
never growing cannot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from simic.contracts.names import WAIT
from simic.contracts.results.gate import Criterion
from simic.validation.criterion import TRIALS, Case, line
from simic.validation.gate_bounds import Direction, loss_bound

__all__ = ["EVIDENCE", "METRICS", "NAME", "ORDER", "SUMMARY", "Metric", "judge"]

NAME = "regression"
SUMMARY = "upper bound of each metric's relative loss to champion and wait, at most `gate.max_regression`"
ORDER = 300
EVIDENCE = TRIALS


class Metric(NamedTuple):
    """A metric that must not get worse by more than the tolerated share."""

    field: str
    """Field of a ``ControllerTrial`` with an entry per host."""
    direction: Direction


METRICS: Mapping[str, Metric] = {
    "test_accuracy": Metric("test_accuracies", Direction.HIGHER),
    "validation_accuracy": Metric("validation_accuracies", Direction.HIGHER),
}


def judge(case: Case) -> Iterator[Criterion]:
    """Yield one criterion per metric and reference."""
    alpha = case.judgement.alpha
    for reference in (*case.champions, WAIT):
        for metric, (field, direction) in METRICS.items():
            loss = loss_bound(case.report.trials, reference, field, direction, alpha)
            evidence = f"upper bound at level {alpha:.2g} of the relative loss of mean {metric}, where "
            evidence += f"{direction.value} is better, against {reference}"
            if loss is not None:
                evidence += f": mean {loss.estimate:+.4f}"
            value = None if loss is None else loss.bound
            yield line(f"{metric}_{NAME}_to_{reference}", value, "<=", case.gate.max_regression, evidence)
