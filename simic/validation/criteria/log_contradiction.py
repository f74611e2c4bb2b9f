"""``log_contradiction``: a log of the same set and the trials tell the same return of the candidate.

Both are estimates of one number on independent hosts. Intervals of 99 % that do not even touch say that one of them is
wrong: trials that are not of this policy, reported probabilities that are not those of the draw, or other hosts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import sqrt

import numpy as np

from simic.contracts.names import CANDIDATE
from simic.contracts.results.gate import Criterion
from simic.contracts.results.log_evidence import LogEvidence
from simic.contracts.results.trials import TrialReport
from simic.numerics.intervals import Interval, student_interval, student_quantile
from simic.validation.criterion import POLICIES, TRIALS, Case, line
from simic.validation.off_policy import supports

__all__ = ["ABSENT", "EVIDENCE", "MODELS", "NAME", "ORDER", "SUMMARY", "judge"]

NAME = "log_contradiction"
SUMMARY = "points between the 99 % intervals of the trials and of a log: none; no line without a sufficient log"
ORDER = 280
EVIDENCE = TRIALS
MODELS = POLICIES
ABSENT = "no sufficient estimate from a log beside the trials, in all and by each controller that logged"
"""Why there may be no line, for the list of absent criteria."""
CONFIDENCE = 0.99


def judge(case: Case) -> Iterator[Criterion]:
    """Yield the criterion if a log on held-out hosts is sufficient evidence about the candidate."""
    log = case.report.log
    if log is None or not log.returns or not supports(log, CANDIDATE):
        return
    grown = _in_mix_of(log, case.report.trials)
    if grown is None:
        return
    logged = student_interval(log.returns, CONFIDENCE)
    gap = max(logged.lower - grown.upper, grown.lower - logged.upper, 0.0)
    side = "below" if grown.mean < logged.mean else "above"
    evidence = f"points between the {CONFIDENCE:.0%} intervals of the candidate's return in the trials, "
    evidence += f"{_text(grown)}, and by the log, {_text(logged)} of {len(log.returns)} hosts; the trials are {side}"
    yield line(NAME, gap, "<=", 0.0, evidence)


def _in_mix_of(log: LogEvidence, trials: TrialReport) -> Interval | None:
    """Return the interval of the mean return in the trials, in the mix of families of the log's episodes.

    None if a family of the log has fewer than two hosts in the trials.
    """
    row = next((trial for trial in trials.controllers if trial.controller == CANDIDATE), None)
    if row is None or len(row.returns) != len(trials.families):
        return None
    returns, families = np.asarray(row.returns), np.asarray(trials.families)
    mean = variance = 0.0
    episodes = Counter[str]()
    for family, count in zip(log.families, log.host_episodes or [1] * len(log.families), strict=True):
        episodes[family] += count
    for family, count in episodes.items():
        own, share = returns[families == family], count / episodes.total()
        if len(own) < 2:
            return None
        mean += share * float(own.mean())
        variance += share**2 * float(own.var(ddof=1)) / len(own)
    half = student_quantile(0.5 + CONFIDENCE / 2.0, len(returns) - 1) * sqrt(variance)
    return Interval(mean, mean - half, mean + half)


def _text(interval: Interval) -> str:
    return f"{interval.mean:.2f} [{interval.lower:.2f}, {interval.upper:.2f}]"
