"""``plan_book_of_other_settings``: the plan book was searched with the settings of the trials."""

from __future__ import annotations

from collections.abc import Iterator

from simic.contracts.results.gate import Criterion
from simic.validation.baselines.plan_book import other_game_message
from simic.validation.criterion import POLICIES, TRIALS, Case, line

__all__ = ["EVIDENCE", "MODELS", "NAME", "ORDER", "SUMMARY", "judge"]

NAME = "plan_book_of_other_settings"
SUMMARY = "settings in which the trials differ from the search of the plan book: none"
ORDER = 120
EVIDENCE = TRIALS
MODELS = POLICIES


def judge(case: Case) -> Iterator[Criterion]:
    """Yield the criterion if a setting differs."""
    trials = case.report.trials
    if trials.book_differences:
        evidence = other_game_message(trials.set, trials.book_differences)
        yield line(NAME, float(len(trials.book_differences)), "<=", 0.0, evidence)
