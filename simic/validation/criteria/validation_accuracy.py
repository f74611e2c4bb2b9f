"""``validation_accuracy``: the committed networks are as accurate as the set asks."""

from __future__ import annotations

from collections.abc import Iterator

from simic.contracts.results.gate import Criterion
from simic.validation.criterion import TRIALS, Case, line

__all__ = ["EVIDENCE", "NAME", "ORDER", "SUMMARY", "judge"]

NAME = "validation_accuracy"
SUMMARY = "mean validation accuracy, at least `gate.min_validation_accuracy`; none without that bound"
ORDER = 310
EVIDENCE = TRIALS


def judge(case: Case) -> Iterator[Criterion]:
    """Yield the criterion if the profile has a bound for its set."""
    bound, row = case.gate.min_validation_accuracy, case.candidate
    if bound is not None:
        values = [] if row is None else row.validation_accuracies
        mean = sum(values) / len(values) if values else None
        evidence = f"mean validation accuracy of the networks that the candidate committed on {len(values)} hosts"
        yield line(NAME, mean, ">=", bound, evidence)
