"""``mean_ratio``: learning was not too far off-policy."""

from __future__ import annotations

from collections.abc import Iterator

from simic.contracts.results.gate import Criterion
from simic.validation.criterion import POLICIES, Case, line

__all__ = ["MODELS", "NAME", "ORDER", "SUMMARY", "judge"]

NAME = "mean_ratio"
SUMMARY = "mean min(1, rho) of the last pass, at least `gate.min_mean_ratio`; none if it learned without ratios"
ORDER = 630
MODELS = POLICIES

_REGRETS = frozenset({"expected_regret", "fitted_regret"})
"""Metrics of distillation and of fitted Q: points that the policy is expected to lose against the best actions."""


def judge(case: Case) -> Iterator[Criterion]:
    """Yield the criterion unless the policy was distilled without V-trace on top: there are no importance ratios."""
    metrics = case.report.training_metrics
    if NAME not in metrics and metrics.keys() & _REGRETS:
        return
    evidence = "mean min(1, rho) of the last pass; small means learning was too far off-policy"
    yield line(NAME, metrics.get(NAME), ">=", case.gate.min_mean_ratio, evidence)
