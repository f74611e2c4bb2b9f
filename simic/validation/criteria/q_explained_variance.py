"""``q_explained_variance``: the Q-functions of fitted Q explain something."""

from __future__ import annotations

from collections.abc import Iterator

from simic.contracts.results.gate import Criterion
from simic.validation.criterion import POLICIES, Case, line

__all__ = ["MODELS", "NAME", "ORDER", "SUMMARY", "judge"]

NAME = "q_explained_variance"
SUMMARY = "share of the variance of returns that fitted Q explains on hosts it did not see, above 0"
ORDER = 620
MODELS = POLICIES

_FITTED_REGRET = "fitted_regret"
"""Metric of fitted Q: points that the policy is expected to lose against the actions that the Q-functions prefer."""


def judge(case: Case) -> Iterator[Criterion]:
    """Yield the criterion if the policy learned by fitted Q."""
    metrics = case.report.training_metrics
    if _FITTED_REGRET in metrics:
        evidence = "share of the variance of returns that the Q-functions explain on hosts they did not see"
        yield line(NAME, metrics.get(NAME), ">", 0.0, evidence)
