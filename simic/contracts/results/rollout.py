"""What `simic rollout status` says: the success of a policy in production, and the verdict on its rollout."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Literal

from pydantic import Field

from simic.contracts.base import Contract, Count, UnitInterval, UtcDatetime
from simic.contracts.policy_update import PolicyUpdate, RolloutPlan

__all__ = ["RolloutStatus", "RolloutVerdict", "SuccessRate"]


class RolloutVerdict(str, Enum):
    """Whether the evidence lets a rollout pass, go on or fail."""

    PASSING = "PASSING"
    """The lower bound of the policy's success, with open episodes as failures, reaches the plan's least success."""
    UNDECIDED = "UNDECIDED"
    """The success of the policy reaches the plan's least success, but its lower bound does not."""
    INSUFFICIENT = "INSUFFICIENT"
    """The policy has fewer episodes than the plan asks for."""
    FAILING = "FAILING"
    """The success of the policy is below the plan's least success, or with few episodes its upper bound is."""


class SuccessRate(Contract):
    """Share of a policy's episodes that succeeded; null without an episode."""

    episodes: Count
    """Whole episodes, and those that were cut off."""
    succeeded: Count
    """Episodes that the governor did not end and that kept the validation accuracy of their host, to 0.005."""
    cut_off: Count
    """Episodes without an end that are open for three times as long as the longest whole one of their set."""
    open: Count = 0
    """Episodes without an end that are not yet cut off. They are in no share and no bound."""
    share: UnitInterval | None = None
    lower: UnitInterval | None = None
    upper: UnitInterval | None = None
    confidence: Annotated[float, Field(gt=0.5, lt=1.0)]
    """Confidence of the interval of Clopper and Pearson (1934)."""


class RolloutStatus(Contract):
    """A rollout in progress, and what the landed reports say about it."""

    schema_version: Literal[1] = 1
    update: PolicyUpdate
    """Update that began the rollout."""
    judged_at: UtcDatetime
    ends_at: UtcDatetime
    """Time at which the hours of the plan are over."""
    is_over: bool
    policy: SuccessRate
    baseline: SuccessRate
    """Success of the policy outside the share in the same time, for comparison only."""
    verdict: RolloutVerdict

    @property
    def plan(self) -> RolloutPlan:
        """The plan of the update."""
        if self.update.rollout is None:
            raise AssertionError("an update without a plan has no rollout")
        return self.update.rollout

    def told(self) -> str:
        """Return the evidence in one sentence, without a full stop."""
        rate, plan = self.policy, self.plan
        if rate.share is None:
            return f"insufficient evidence, no whole episode of it has landed, {plan.min_episodes} are needed"
        figures = (
            f"{rate.succeeded} of {rate.episodes} episodes succeeded, {rate.share:.0%} "
            f"[{rate.lower:.0%}, {rate.upper:.0%}]"
            + (f", {rate.cut_off} were cut off" if rate.cut_off else "")
            + (f", {rate.open} are open" if rate.open else "")
        )
        return {
            RolloutVerdict.PASSING: f"passing, {figures}, at least {plan.min_success:.0%} are needed",
            RolloutVerdict.UNDECIDED: f"undecided, {figures}, the lower bound must reach {plan.min_success:.0%}"
            + (" with open episodes as failures" if rate.open else ""),
            RolloutVerdict.INSUFFICIENT: f"insufficient evidence, {figures}, {plan.min_episodes} episodes are needed",
            RolloutVerdict.FAILING: f"failing, {figures}, at least {plan.min_success:.0%} are needed",
        }[self.verdict]
