"""``return_over``: lower confidence bounds of paired return differences, in points.

A candidate passes only if each of them holds, so all may be at the level of the judgement (intersection-union test:
Berger 1982, Technometrics 24(4)).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from simic.contracts.names import BLIND, HEURISTIC, RANDOM, WAIT
from simic.contracts.results.gate import Criterion
from simic.validation.baselines.plan_book import REQUIRES_PLAN_BOOK, requires_book
from simic.validation.criterion import TRIALS, Case, interval_text, line
from simic.validation.gate_bounds import POWER, difference_bound

__all__ = ["BASELINES", "EVIDENCE", "NAME", "ORDER", "SUMMARY", "judge"]

NAME = "return_over"
SUMMARY = "lower bound of the paired difference to each rival, above `gate.margin_over_baselines` or `..._champion`"
ORDER = 200
EVIDENCE = TRIALS

BASELINES = (WAIT, RANDOM, HEURISTIC, BLIND)
"""Controllers that every policy must beat; a set without a plan book may lack blind."""


def judge(case: Case) -> Iterator[Criterion]:
    """Yield one criterion per controller to beat."""
    margins = {} if case.is_karn else dict.fromkeys(_baselines(case), case.gate.margin_over_baselines)
    margins |= dict.fromkeys(case.champions, case.gate.margin_over_champion)
    for other, margin in margins.items():
        yield _difference(case, other, margin)


def _baselines(case: Case) -> list[str]:
    """Return the controllers to beat; those that need a plan book are left out only if none exists or is required."""
    trials = case.report.trials
    if trials.plans_digest is not None or requires_book(trials.set, is_asked=case.gate.require_plan_book):
        return list(BASELINES)
    return [name for name in BASELINES if name not in REQUIRES_PLAN_BOOK or name in case.report.differences]


def _difference(case: Case, other: str, margin: float) -> Criterion:
    report, alpha = case.report, case.judgement.alpha
    name, label = f"{NAME}_{other}", other
    estimate = report.differences.get(other)
    if other == HEURISTIC and report.trials.plans_digest is None:
        label = f"{other} on its default rules"
    if estimate is None:
        return line(name, None, ">", margin, f"no paired difference to {label} in the report")
    evidence = f"lower bound at level {alpha:.2g} of the paired difference to {label}: mean {estimate.mean:+.2f} "
    evidence += interval_text(estimate)
    if estimate.n < case.gate.min_episodes:
        return line(name, None, ">", margin, f"{evidence}; fewer than {case.gate.min_episodes}")
    difference = difference_bound(report.trials, other, alpha)
    # A mean that is not finite invalidates the estimate, whatever its returns.
    if difference is None or not math.isfinite(estimate.mean):
        return line(name, None, ">", margin, evidence)
    evidence += f"; {margin + difference.detectable:.2f} points would pass with {POWER:.0%} power"
    return line(name, difference.bound, ">", margin, evidence, margin + difference.detectable)
