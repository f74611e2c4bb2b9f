"""``mean_over_symptom``: the candidate is about as good as the tree, unless the trials say that there is none.

On ``SETS_TO_BEAT`` there must be one, and the candidate must be better. The value is the mean, not a lower bound: a
candidate that is level with the tree would fail a bound of half a point on some hundred hosts more often than not.
"""

from __future__ import annotations

from collections.abc import Iterator

from simic.contracts.names import SYMPTOM
from simic.contracts.results.gate import Criterion
from simic.validation.criterion import POLICIES, TRIALS, Case, Comparison, interval_text, line

__all__ = ["ABSENT", "EVIDENCE", "MODELS", "NAME", "ORDER", "SUMMARY", "judge"]

NAME = "mean_over_symptom"
SUMMARY = "mean paired difference to the tree, at least -`gate.max_loss_to_symptom`; on `varied` above 0"
ORDER = 210
EVIDENCE = TRIALS
MODELS = POLICIES
ABSENT = "the plan book has no tree, or there is no plan book"
"""Why there may be no line, for the list of absent criteria."""

SETS_TO_BEAT = frozenset({"varied"})
"""Sets on which a candidate must beat the tree: their families do not tell what a host needs, so a controller that
reads one observation has much left to gain."""


def judge(case: Case) -> Iterator[Criterion]:
    """Yield the criterion."""
    report, least = case.report, case.gate.min_episodes
    is_to_beat = report.trials.set in SETS_TO_BEAT
    bound = 0.0 if is_to_beat else -case.gate.max_loss_to_symptom
    holds: Comparison = ">" if is_to_beat else ">="
    estimate = report.differences.get(SYMPTOM)
    if estimate is None and SYMPTOM in report.trials.without_book and not is_to_beat:
        return
    if estimate is None or estimate.n < least:
        lacking = "no" if estimate is None else f"{estimate.n} hosts, fewer than {least}, in the"
        yield line(NAME, None, holds, bound, f"{lacking} paired difference to {SYMPTOM} in the report")
        return
    evidence = f"paired difference to {SYMPTOM}, a tree that reads one observation: mean {estimate.mean:+.2f} "
    yield line(NAME, estimate.mean, holds, bound, evidence + interval_text(estimate))
