"""``validation_loss``: the committed networks lose as little as the set asks."""

from __future__ import annotations

from collections.abc import Iterator

from simic.contracts.results.gate import Criterion
from simic.validation.criterion import TRIALS, Case, line

__all__ = ["EVIDENCE", "NAME", "ORDER", "SUMMARY", "judge"]

NAME = "validation_loss"
SUMMARY = "mean validation loss, at most `gate.max_validation_loss`; none without that bound"
ORDER = 320
EVIDENCE = TRIALS


def judge(case: Case) -> Iterator[Criterion]:
    """Yield the criterion if the profile has a bound for its set."""
    bound, row = case.gate.max_validation_loss, case.candidate
    if bound is not None:
        values = [] if row is None else row.validation_losses
        mean = sum(values) / len(values) if values else None
        evidence = f"mean validation loss of the networks that the candidate committed on {len(values)} hosts"
        yield line(NAME, mean, "<=", bound, evidence)
