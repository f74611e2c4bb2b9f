"""``commit_rate``: the policy germinates and fossilises on logged states."""

from __future__ import annotations

from collections.abc import Iterator

from simic.contracts.results.gate import Criterion
from simic.validation.criterion import POLICIES, Case, line

__all__ = ["MODELS", "NAME", "ORDER", "SUMMARY", "judge"]

NAME = "commit_rate"
SUMMARY = "P(germinates once or more) x P(fossilises once or more) on logged states, at least `train.min_commit_rate`"
ORDER = 610
MODELS = POLICIES


def judge(case: Case) -> Iterator[Criterion]:
    """Yield the criterion."""
    evidence = "P(germinates at least once) x P(fossilises at least once), on logged states; 0 never commits"
    yield line(NAME, case.report.training_metrics.get(NAME), ">=", case.min_commit_rate, evidence)
