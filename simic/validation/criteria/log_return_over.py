"""``log_return_over``: lower confidence bounds of return differences that are estimated from a log, in points.

A candidate passes only if each of them holds, so all may be at the level of the judgement, as in ``return_over``.
"""

from __future__ import annotations

from collections.abc import Iterator

from simic.contracts.names import CHAMPION, WAIT
from simic.contracts.results.gate import Criterion
from simic.validation.criterion import REPORTS, Case, interval_text, line
from simic.validation.gate_bounds import POWER
from simic.validation.log_evidence import BEHAVIOUR, gain_bound

__all__ = ["EVIDENCE", "NAME", "ORDER", "SUMMARY", "judge"]

NAME = "log_return_over"
SUMMARY = "lower bound of the estimated gain over behaviour, wait and champion, above the margins of `return_over`"
ORDER = 270
EVIDENCE = REPORTS


def judge(case: Case) -> Iterator[Criterion]:
    """Yield one criterion per controller to beat."""
    margins = dict.fromkeys((BEHAVIOUR, WAIT), case.gate.margin_over_baselines)
    if case.report.champion_digest is not None:
        margins[CHAMPION] = case.gate.margin_over_champion
    for other, margin in margins.items():
        yield _difference(case, other, margin)


def _difference(case: Case, other: str, margin: float) -> Criterion:
    report, alpha, name = case.report, case.judgement.alpha, f"{NAME}_{other}"
    gain = None if report.log is None else gain_bound(report.log, other, alpha)
    estimate = report.differences.get(other)
    if report.log is None or gain is None or estimate is None:
        return line(name, None, ">", margin, f"no estimated gain over {other} in the report")
    evidence = f"lower bound at level {alpha:.2g} of the gain over {other} by {report.log.estimator}: mean "
    evidence += f"{estimate.mean:+.2f} {interval_text(estimate)}"
    if estimate.n < case.gate.min_episodes:
        return line(name, None, ">", margin, f"{evidence}; fewer than {case.gate.min_episodes}")
    evidence += f"; {margin + gain.detectable:.2f} points would pass with {POWER:.0%} power"
    return line(name, gain.bound, ">", margin, evidence, margin + gain.detectable)
