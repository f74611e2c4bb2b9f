"""Rollouts: which consumers use a new policy first, with which plan an update about a champion begins, and its verdict.

Pure functions. A consumer needs only the update and its own name to know whether it is within the
share, so consumers neither ask nor tell each other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from simic.contracts.policy_update import PolicyUpdate, RolloutPlan
from simic.contracts.results.receipts import PolicyVersion
from simic.contracts.results.rollout import RolloutVerdict, SuccessRate
from simic.contracts.settings.run import RolloutConfig
from simic.numerics.intervals import binomial_interval

__all__ = ["digest_for", "first_plan", "is_within", "success_rate", "verdict_of"]

_CONFIDENCE = 0.95


def is_within(update: PolicyUpdate, consumer: str) -> bool:
    """Return whether a consumer is to use the policy that an update names, and not its baseline.

    The SHA-256 of policy and consumer is uniform on [0, 1) and compared with the share. So the answer stays the same
    for one policy, a larger share only adds consumers, and each policy is tried by others first.
    """
    if update.rollout is None:
        return True
    place = hashlib.sha256(f"{update.digest}\n{consumer}".encode()).digest()
    return int.from_bytes(place[:8]) / 2**64 < update.rollout.share


def digest_for(update: PolicyUpdate, consumer: str) -> str:
    """Return the digest of the policy that a consumer is to use by an update."""
    if update.rollout is None or is_within(update, consumer):
        return update.digest
    return update.rollout.baseline


def first_plan(
    version: PolicyVersion,
    former: PolicyVersion | None,
    updates: Sequence[PolicyUpdate],
    config: RolloutConfig,
    *,
    is_rollback: bool,
) -> RolloutPlan | None:
    """Return the plan with which an update about the champion begins; None if all consumers are to use it at once.

    Args:
        version: The champion.
        former: The champion that it replaced when it was promoted.
        updates: Delivered updates about the model, oldest first.
        config: The settings.
        is_rollback: Whether a rollback made it champion. A policy that all consumers had before is then restored for
            all at once; one whose own rollout never ended begins that again.
    """
    whole = {update.digest: update for update in updates if update.rollout is None}
    begins_whole = version.digest in whole if is_rollback else config.start == "full"
    if begins_whole or not whole:
        return None
    newest = next(update for update in reversed(updates) if update.rollout is None)
    baseline = newest if former is None else whole.get(former.digest, newest)
    if baseline.digest == version.digest:
        return None
    return RolloutPlan(
        share=config.share,
        hours=config.hours,
        min_success=config.min_success,
        min_episodes=config.min_episodes,
        baseline=baseline.digest,
        baseline_version=baseline.version,
    )


def success_rate(counts: Mapping[str, int]) -> SuccessRate:
    """Return the counts of episodes, named as the fields of a ``SuccessRate``, with an exact interval of the share."""
    if not counts["episodes"]:
        return SuccessRate(**counts, confidence=_CONFIDENCE)
    interval = binomial_interval(counts["succeeded"], counts["episodes"], _CONFIDENCE)
    return SuccessRate(
        **counts, share=interval.mean, lower=interval.lower, upper=interval.upper, confidence=_CONFIDENCE
    )


def verdict_of(rate: SuccessRate, plan: RolloutPlan) -> RolloutVerdict:
    """Return what the evidence says; too little of it passes nothing."""
    if rate.share is None or rate.lower is None or rate.upper is None:
        return RolloutVerdict.INSUFFICIENT
    is_enough = rate.episodes >= plan.min_episodes
    if rate.upper < plan.min_success or (is_enough and rate.share < plan.min_success):
        return RolloutVerdict.FAILING
    if not is_enough:
        return RolloutVerdict.INSUFFICIENT
    least = binomial_interval(rate.succeeded, rate.episodes + rate.open, _CONFIDENCE).lower
    return RolloutVerdict.PASSING if least >= plan.min_success else RolloutVerdict.UNDECIDED
