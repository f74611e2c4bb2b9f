"""Evidence for the gate from logged episodes: estimates per host, and the differences that follow from them.

The estimator is per-decision weighted importance sampling, which needs no fitted model: its numbers repeat, and the
error of the gate on it can be simulated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.contracts.names import CANDIDATE, CHAMPION, WAIT
from simic.contracts.results.log_evidence import LogEvidence, LogSupport
from simic.contracts.results.trials import Estimate
from simic.contracts.state import HostIdentity
from simic.numerics.intervals import student_interval
from simic.numerics.mean_bounds import lower_bound
from simic.numerics.off_policy import ESTIMATORS, LoggedEpisodes, logged_mean
from simic.numerics.ratio_sums import RatioSums, contributions, joined
from simic.validation.gate_bounds import POWER, Bound
from simic.validation.off_policy import Group, log_groups, support_of

__all__ = [
    "BEHAVIOUR",
    "CUT_OFF",
    "ESTIMATOR",
    "RIVALS",
    "LogUse",
    "gain_bound",
    "log_differences",
    "log_evidence",
    "support_text",
]

ESTIMATOR = "PDWIS"
BEHAVIOUR = "behaviour"
"""The controllers that logged the episodes, whose mean return is known."""
CUT_OFF = "cut off: "
"""What a reason in ``left_out`` begins with if the episode was not logged to its end."""
ROUNDING = 1e-3
"""Points that rounded log-probabilities may add to a gain: a candidate that only waits must gain nothing over wait."""
RIVALS = (WAIT, CHAMPION)
"""Policies whose returns are estimated from the log as the candidate's is."""


class LogUse(NamedTuple):
    """Which episodes of which snapshot are used; B episodes."""

    snapshot_digest: str
    left_out: Mapping[str, int]
    hosts: Sequence[HostIdentity]
    """[B]: host of each episode."""
    behaviours: Sequence[str]
    """[B]: controller or policy that logged each episode."""
    horizons: Sequence[int]
    """Horizons of the episodes, in epochs."""
    cut_off: float | None = None
    """As ``LogEvidence.cut_off``."""
    group_cut_off: Mapping[Group, float] = {}
    """As ``LogGroup.cut_off``, by set and behaviour; a group that is not there was not counted."""


def log_evidence(use: LogUse, episodes: Mapping[str, LoggedEpisodes]) -> LogEvidence:
    """Return what a log says about the candidate; ``episodes`` has the weights of the log per policy.

    Without the candidate's, or with a single host, the evidence is empty, which no criterion passes.
    """
    names = [f"{host.set}:{host.key}" for host in use.hosts]
    _, first, inverse = np.unique(names, return_index=True, return_inverse=True)
    labels: NDArray[np.int64] = inverse.reshape(-1)
    hosts = [use.hosts[row] for row in first.tolist()]
    groups = [(host.set, behaviour) for host, behaviour in zip(use.hosts, use.behaviours, strict=True)]
    is_enough = CANDIDATE in episodes and len(hosts) > 1
    estimates = {name: ESTIMATORS[ESTIMATOR](logged).sums for name, logged in episodes.items()} if is_enough else {}
    ours, gains = estimates.get(CANDIDATE), dict[str, list[float]]()
    if ours is not None:
        rivals = {BEHAVIOUR: logged_mean(episodes[CANDIDATE]), **{name: estimates.get(name) for name in RIVALS}}
        found_gains = {
            name: _per_host(joined(ours, theirs), labels) for name, theirs in rivals.items() if theirs is not None
        }
        gains = {name: values for name, values in found_gains.items() if values}
    return LogEvidence(
        estimator=ESTIMATOR,
        snapshot_digest=use.snapshot_digest,
        behaviours=dict(Counter(use.behaviours).most_common()),
        left_out=dict(use.left_out),
        episodes=len(use.hosts),
        cut_off=use.cut_off,
        horizons=list(use.horizons),
        groups=log_groups(groups, labels, episodes, use.group_cut_off) if is_enough else [],
        sets=[host.set for host in hosts],
        families=[host.family for host in hosts],
        host_keys=[host.key for host in hosts],
        host_episodes=np.bincount(labels, minlength=len(hosts)).tolist(),
        support={name: support_of(logged, labels) for name, logged in episodes.items()} if is_enough else {},
        returns=[] if ours is None else _per_host(ours, labels),
        gains=gains,
    )


def _per_host(sums: RatioSums, labels: NDArray[np.int64]) -> list[float]:
    per_host = contributions(sums.by_group(labels))
    return [] if per_host is None else per_host.tolist()


def log_differences(evidence: LogEvidence, confidence: float) -> dict[str, Estimate]:
    """Return the candidate's estimated gain over each other, with Student's interval over hosts."""
    return {name: _estimate(gains, confidence) for name, gains in evidence.gains.items() if len(gains) > 1}


def _estimate(values: Sequence[float], confidence: float) -> Estimate:
    interval = student_interval(values, confidence)
    return Estimate(
        mean=interval.mean, lower=interval.lower, upper=interval.upper, confidence=confidence, n=len(values)
    )


def gain_bound(evidence: LogEvidence, other: str, alpha: float) -> Bound | None:
    """Return the lower bound of the candidate's gain over ``other`` in points, by the bound that judges trials.

    It is lowered by ``ROUNDING``. Families are no strata, because nobody drew equal numbers of them. None where the
    gain is missing.
    """
    values = evidence.gains.get(other, [])
    if len(values) < 2:
        return None
    bound = lower_bound(values, alpha, None, POWER)
    return Bound(float(bound.mean), float(bound.lower) - ROUNDING, float(bound.detectable) + ROUNDING)


def support_text(support: LogSupport) -> str:
    """Return what an estimate rests on, for the evidence of a criterion."""
    return (
        f"{support.hosts} hosts, worth {support.effective_hosts:.0f} at the least step; largest weight "
        f"{support.largest_weight:.3g}; {support.overlap:.0%} of the episodes in common; {support.clip_count} clamped"
    )
