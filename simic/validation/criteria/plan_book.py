"""``plan_book``: baselines follow a plan book; shipped sets without one, and sets of other packages, may lack it."""

from __future__ import annotations

from collections.abc import Iterator

from simic.contracts.names import BLIND, HEURISTIC, ORACLE, SYMPTOM
from simic.contracts.results.gate import Criterion
from simic.validation.baselines.plan_book import PLAN_BOOK, missing_book_message, requires_book
from simic.validation.criterion import POLICIES, TRIALS, Case, line

__all__ = ["EVIDENCE", "MODELS", "NAME", "ORDER", "SUMMARY", "judge"]

NAME = "plan_book"
SUMMARY = (
    "baselines follow a plan book; with `gate.require_plan_book` false, `maps`, `shapes`, `trunks` and sets of other "
    "packages may have none"
)
ORDER = 110
EVIDENCE = TRIALS
MODELS = POLICIES

PLAN_BASELINES = (HEURISTIC, BLIND, SYMPTOM, ORACLE)
"""Controllers of a judgement that follow a plan book."""


def judge(case: Case) -> Iterator[Criterion]:
    """Yield 1 with a plan book and 0 without; the bound is 1 where the set needs one."""
    trials = case.report.trials
    needed = float(requires_book(trials.set, is_asked=case.gate.require_plan_book))
    if trials.plans_digest is not None:
        evidence = f"plan book {trials.plans_digest[:12]} of set {trials.set}"
        yield line(PLAN_BOOK, 1.0, ">=", needed, evidence)
    else:
        yield line(PLAN_BOOK, 0.0, ">=", needed, missing_book_message(trials.set, PLAN_BASELINES))
