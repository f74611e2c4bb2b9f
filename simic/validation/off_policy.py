"""Judgement of a policy from a log: estimates with intervals, conditions of sufficient evidence, and the verdict.

The conditions fail closed: a number that is missing or not defined does not pass, and one failed condition is enough
for "insufficient evidence". The unit of every interval is a host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from statistics import NormalDist
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simic.contracts.names import short
from simic.contracts.results.log_evidence import LogEvidence, LogGroup, LogSupport, MeanWeight
from simic.contracts.results.off_policy import EvaluationVerdict, EvidenceCheck, LowerBound, OffPolicyRow, Range
from simic.numerics.intervals import empirical_bernstein, hoeffding, student_quantile
from simic.numerics.off_policy import (
    ESTIMATORS,
    NEEDS_MODEL,
    LoggedEpisodes,
    OffPolicyEstimate,
    bounded_returns,
    logged_mean,
    mean_weight,
)
from simic.numerics.ratio_sums import RatioSums, joined, ratio_bootstrap, ratio_student

__all__ = [
    "CONFIDENCE",
    "LEAST_EFFECTIVE",
    "LEAST_HOSTS",
    "LEAST_WEIGHT",
    "MOST_CUT_OFF",
    "MOST_SHARE",
    "Group",
    "OffPolicyJudgement",
    "farthest_group",
    "group_margin",
    "is_sufficient",
    "judge",
    "log_groups",
    "lower_bounds",
    "no_judgement",
    "support_of",
    "supports",
    "weight_margin",
    "weight_of",
]

CONFIDENCE = 0.95
SAMPLES = 2000
"""Resamples of a bootstrap."""
LEAST_HOSTS = 50
LEAST_EFFECTIVE = 50.0
"""Least effective number of hosts, at every step."""
MOST_CUT_OFF = 0.01
"""Largest share of episodes that were not logged to their end."""
MOST_SHARE = 0.1
"""Largest share of one host in the sum of all weights."""
WEIGHT_DEVIATIONS = 3.0
"""Largest distance of the mean weight from 1, in standard errors."""
LEAST_WEIGHT = 0.85
"""Least value that many standard errors below the mean weight: where weights are noisy, a mean near 1 does not show
that the log has the actions of the target."""
WEIGHT_ROUNDING = 1e-3
"""Distance that always passes: log-probabilities are stored in float32."""
STANDARD_ERROR = 0.6827
"""Confidence of an interval that reaches one standard error to either side, for many hosts."""
WEIGHT_CUT = 10.0
"""Weights above it are cut in the bounds that hold for any distribution."""
JUDGES = ("PDWIS", "WDR")
"""Estimators that judge, the second one if there is a model of the values."""
GROUPS = "mean weight by set and controller"
TARGET = "target"
"""Name of the judged policy in its groups."""
Group: TypeAlias = tuple[str, str]
"""A set, and the controller or policy that logged episodes on it."""


class OffPolicyJudgement(NamedTuple):
    """The parts of a report that follow from the weights and returns."""

    behaviour_return: Range | None
    rows: list[OffPolicyRow]
    judged_by: list[str]
    checks: list[EvidenceCheck]
    verdict: EvaluationVerdict


def judge(
    episodes: LoggedEpisodes, hosts: NDArray[np.int64], groups: Sequence[Group], seed: int, cut_off: float | None
) -> OffPolicyJudgement:
    """Judge the target against the behaviour; ``hosts`` [B] are labels of the hosts of the episodes.

    ``groups`` [B] are set and behaviour of each episode: where one behaviour lacks actions of the target, the estimate
    rests on the hosts of the others. ``cut_off`` is the largest share, over sets and groups, of episodes that the log
    lacks because they were not logged to their end, None if nobody counted: a training that crashes leaves no return,
    so the others flatter whoever crashes.

    The verdict is better or worse where the intervals of all judging estimators lie on that side of 0 and every
    condition holds.
    """
    names = [name for name in ESTIMATORS if episodes.q_values is not None or name not in NEEDS_MODEL]
    estimates = {name: ESTIMATORS[name](episodes) for name in names}
    judged_by = [name for name in JUDGES if name in estimates]
    checks = [*_checks_of(episodes, hosts, groups), _cut_off_check(cut_off)]
    if len(np.unique(hosts)) < 2:
        return OffPolicyJudgement(None, [], judged_by, checks, EvaluationVerdict.INSUFFICIENT)
    logged = logged_mean(episodes)
    rows = [_row(name, estimate, logged, hosts, seed) for name, estimate in estimates.items()]
    judging = [row.difference for row in rows if row.estimator in judged_by]
    return OffPolicyJudgement(_range(logged, hosts, seed), rows, judged_by, checks, _verdict(judging, checks))


def no_judgement(episodes: int) -> OffPolicyJudgement:
    """Return the judgement of a log with too few episodes to compute anything."""
    check = EvidenceCheck(name="hosts", found=episodes, expected=f"at least {LEAST_HOSTS}", passes=False)
    return OffPolicyJudgement(None, [], [], [check], EvaluationVerdict.INSUFFICIENT)


def lower_bounds(
    episodes: LoggedEpisodes, hosts: NDArray[np.int64], low: float, high: float, cut_off: float
) -> list[LowerBound]:
    """Return lower bounds of the target's value for returns that are declared to lie in [low, high].

    Each host counts as one draw: the mean over its episodes. Weights are cut at ``WEIGHT_CUT``, which lowers the
    expectation and never raises it. The share ``cut_off`` of the log, below 1, has no return, because its episodes did
    not end; so many draws of the lowest return join the others.

    Raises:
        ValueError: if a logged return lies outside the range.
    """
    bounded = bounded_returns(episodes, low, high, WEIGHT_CUT)
    labels = np.unique(hosts, return_inverse=True)[1].reshape(-1)
    means = np.bincount(labels, bounded) / np.bincount(labels)
    means = np.concatenate([means, np.zeros(ceil(len(means) * cut_off / (1.0 - cut_off)))])
    both = 2.0 * CONFIDENCE - 1.0  # the lower end of a two-sided interval of this confidence
    top = WEIGHT_CUT * (high - low)
    methods = {"Hoeffding": hoeffding, "empirical Bernstein": empirical_bernstein}
    return [
        LowerBound(method=name, value=low + max(0.0, method(means, 0.0, top, both).lower), confidence=CONFIDENCE)
        for name, method in methods.items()
    ]


def support_of(episodes: LoggedEpisodes, hosts: NDArray[np.int64]) -> LogSupport:
    """Return how much of a log speaks about the target; ``hosts`` [B] are labels of the hosts of the episodes."""
    weights, whole = episodes.weights().T, np.exp(episodes.log_weights[-1])
    by_host, _ = RatioSums(weights, weights).by_group(hosts)
    count, total, squares = len(by_host), by_host.sum(axis=0), np.square(by_host).sum(axis=0)
    weight = weight_of(mean_weight(episodes), hosts)
    return LogSupport(
        hosts=count,
        effective_hosts=float((np.square(total) / squares).min()) if (squares > 0.0).all() else 0.0,
        largest_share=min(1.0, float(by_host[:, -1].max() / total[-1])) if total[-1] > 0.0 else 1.0,
        largest_weight=float(whole.max()),
        overlap=float((whole > 0.0).mean()),
        clip_count=episodes.clip_count,
        mean_weight=weight.mean,
        mean_weight_error=weight.error,
    )


def weight_of(terms: RatioSums, hosts: NDArray[np.int64]) -> MeanWeight:
    """Return the mean weight of episodes from its terms; ``hosts`` [B] are labels of their hosts."""
    by_host = terms.by_group(hosts)
    interval = ratio_student(by_host, STANDARD_ERROR) if len(by_host.numerators) > 1 else None
    if interval is None:
        return MeanWeight(mean=None, error=None)
    return MeanWeight(mean=interval.mean, error=interval.upper - interval.mean)


def log_groups(
    names: Sequence[Group],
    hosts: NDArray[np.int64],
    episodes: Mapping[str, LoggedEpisodes],
    cut_off: Mapping[Group, float],
) -> list[LogGroup]:
    """Return the mean weights of each policy among the episodes of each group.

    ``names`` [B] and ``hosts`` [B] are group and label of the host of each episode; ``cut_off`` is the share of a group
    that was not logged to its end, where somebody counted.
    """
    terms = {name: mean_weight(logged) for name, logged in episodes.items()}
    members: dict[Group, list[int]] = {name: [] for name in sorted(set(names))}
    for row, name in enumerate(names):
        members[name].append(row)
    return [
        LogGroup(
            set=set_name,
            behaviour=behaviour,
            episodes=len(rows),
            hosts=len(set(hosts[rows].tolist())),
            cut_off=cut_off.get((set_name, behaviour)),
            weights={
                name: weight_of(RatioSums(sums.numerators[rows], sums.denominators[rows]), hosts[rows])
                for name, sums in terms.items()
            },
        )
        for (set_name, behaviour), rows in members.items()
    ]


def farthest_group(groups: Sequence[LogGroup], name: str, comparisons: int) -> tuple[LogGroup, float] | None:
    """Return the group whose mean weight for a policy is farthest from 1, and that distance over what passes.

    None without groups, or if one of them has fewer than ``LEAST_HOSTS`` hosts or no mean weight. ``comparisons`` is
    the number of distances that are judged together.
    """
    distances = [(group, _distance(group, name, comparisons)) for group in groups]
    known = [(group, distance) for group, distance in distances if distance is not None]
    return max(known, key=lambda pair: pair[1]) if known and len(known) == len(groups) else None


def _distance(group: LogGroup, name: str, comparisons: int) -> float | None:
    weight = group.weights.get(name)
    if weight is None or weight.mean is None or weight.error is None or group.hosts < LEAST_HOSTS:
        return None
    return abs(weight.mean - 1.0) / group_margin(weight.error, group.hosts, comparisons)


def is_sufficient(episodes: LoggedEpisodes, hosts: NDArray[np.int64], groups: Sequence[Group]) -> bool:
    """Return whether a log is sufficient evidence about a policy, apart from episodes that were cut off.

    Arguments are those of ``judge``.
    """
    return all(check.passes for check in _checks_of(episodes, hosts, groups))


def supports(log: LogEvidence, name: str) -> bool:
    """Return whether the same holds by what is known of a log: all of it, and its groups for the policy ``name``."""
    support, shares = log.support.get(name), [log.cut_off, *(group.cut_off for group in log.groups)]
    if support is None:
        return False
    worst = None if any(share is None for share in shares) else max(share for share in shares if share is not None)
    checks = [*_checks(support), _group_check(log.groups, name), _cut_off_check(worst)]
    return all(check.passes for check in checks)


def weight_margin(error: float | None) -> float:
    """Return the largest distance of a mean weight with this standard error from 1 that passes; 0 without one."""
    return 0.0 if error is None else max(WEIGHT_DEVIATIONS * error, WEIGHT_ROUNDING)


def group_margin(error: float, hosts: int, comparisons: int) -> float:
    """Return the largest distance from 1 that passes of a mean weight among ``comparisons`` groups and policies.

    Any of them is farther off by chance as seldom as one mean of many hosts lies over ``WEIGHT_DEVIATIONS`` from its
    expectation: the tails of Student's distribution share that probability (Bonferroni). ``hosts`` >= 2; ``error`` is
    that of ``weight_of``.
    """
    tail = NormalDist().cdf(-WEIGHT_DEVIATIONS) / comparisons
    reach = student_quantile(1.0 - tail, hosts - 1) / student_quantile(0.5 + STANDARD_ERROR / 2.0, hosts - 1)
    return max(reach * error, WEIGHT_ROUNDING)


def _checks_of(episodes: LoggedEpisodes, hosts: NDArray[np.int64], groups: Sequence[Group]) -> list[EvidenceCheck]:
    by_group = log_groups(groups, hosts, {TARGET: episodes}, {})
    return [*_checks(support_of(episodes, hosts)), _group_check(by_group, TARGET)]


def _checks(support: LogSupport) -> list[EvidenceCheck]:
    count, margin, weight = support.hosts, weight_margin(support.mean_weight_error), support.mean_weight
    return [
        EvidenceCheck(name="hosts", found=count, expected=f"at least {LEAST_HOSTS}", passes=count >= LEAST_HOSTS),
        EvidenceCheck(
            name="effective number of hosts",
            found=support.effective_hosts,
            expected=f"at least {LEAST_EFFECTIVE:g}",
            passes=support.effective_hosts >= LEAST_EFFECTIVE,
        ),
        EvidenceCheck(
            name="largest share of one host",
            found=support.largest_share,
            expected=f"at most {MOST_SHARE:g}",
            passes=support.largest_share <= MOST_SHARE,
        ),
        EvidenceCheck(
            name="mean weight",
            found=weight,
            expected=f"1 within {margin:.2g}, and that much below it still {LEAST_WEIGHT:g} or more",
            passes=weight is not None and abs(weight - 1.0) <= margin and weight - margin >= LEAST_WEIGHT,
        ),
    ]


def _group_check(groups: Sequence[LogGroup], name: str) -> EvidenceCheck:
    """Return the condition on the group whose mean weight is farthest from 1; one of few hosts has none."""
    farthest, expected = farthest_group(groups, name, max(1, len(groups))), "1 within the errors of all groups"
    weight = None if farthest is None else farthest[0].weights[name]
    if farthest is None or weight is None or weight.mean is None or weight.error is None:
        expected = f"{expected}, each of {LEAST_HOSTS} hosts or more"
        return EvidenceCheck(name=GROUPS, found=None, expected=expected, passes=False)
    margin = group_margin(weight.error, farthest[0].hosts, len(groups))
    expected = f"1 within {margin:.2g} for that of {short(farthest[0].behaviour)} on {farthest[0].set}, the farthest"
    return EvidenceCheck(name=GROUPS, found=weight.mean, expected=expected, passes=farthest[1] <= 1.0)


def _cut_off_check(share: float | None) -> EvidenceCheck:
    return EvidenceCheck(
        name="share cut off before their end",
        found=share,
        expected=f"at most {MOST_CUT_OFF:g} in each set, and of each controller in it",
        passes=share is not None and share <= MOST_CUT_OFF,
    )


def _row(
    name: str, estimate: OffPolicyEstimate, logged: RatioSums, hosts: NDArray[np.int64], seed: int
) -> OffPolicyRow:
    sums = estimate.sums
    return OffPolicyRow(
        estimator=name,
        value=None if sums is None else _range(sums, hosts, seed),
        difference=None if sums is None else _range(joined(sums, logged), hosts, seed),
        n=estimate.n,
        effective_sample_size=estimate.effective_sample_size,
        largest_weight=estimate.largest_weight,
        largest_share=min(1.0, estimate.largest_share),
        overlap=estimate.overlap,
        clip_count=estimate.clip_count,
    )


def _range(sums: RatioSums, hosts: NDArray[np.int64], seed: int) -> Range | None:
    """Return the estimate with the wider one of both intervals on either side."""
    grouped = sums.by_group(hosts)
    student = ratio_student(grouped, CONFIDENCE)
    bootstrap = ratio_bootstrap(grouped, CONFIDENCE, SAMPLES, seed)
    if student is None or bootstrap is None:
        return None
    lower, upper = min(student.lower, bootstrap.lower), max(student.upper, bootstrap.upper)
    return Range(value=student.mean, lower=lower, upper=upper)


def _verdict(judging: Sequence[Range | None], checks: Sequence[EvidenceCheck]) -> EvaluationVerdict:
    intervals = [interval for interval in judging if interval is not None]
    if len(intervals) < len(judging) or not intervals or not all(check.passes for check in checks):
        return EvaluationVerdict.INSUFFICIENT
    if all(interval.lower > 0.0 for interval in intervals):
        return EvaluationVerdict.BETTER
    if all(interval.upper < 0.0 for interval in intervals):
        return EvaluationVerdict.WORSE
    return EvaluationVerdict.NOT_SHOWN
