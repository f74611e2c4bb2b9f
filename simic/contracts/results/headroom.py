"""The headroom of a set: what single seeds gain over never growing."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simic.contracts.base import Contract, Count, Finite
from simic.contracts.controllers import Plan
from simic.contracts.results.trials import Estimate
from simic.contracts.rewards import RewardConfig

__all__ = ["FEWEST_HOSTS", "FamilyHeadroom", "Headroom", "PlanGain"]

FEWEST_HOSTS = 4
"""Per family: each half needs two hosts for an interval."""


class PlanGain(Contract):
    """What one plan gains over never growing."""

    plan: Plan
    """One seed: blueprint, slot and epoch of germination."""
    over_wait: Estimate
    """Paired difference to never growing, in points, over all hosts; the best of many plans is overestimated."""


class FamilyHeadroom(Contract):
    """Headroom of one family, or of all together."""

    plans: Annotated[list[PlanGain], Field(min_length=1)]
    """Every plan, the best first."""
    chosen: Plan
    """The best plan on one half of the hosts; without seeds, if none gains anything there."""
    when_chosen: Finite
    """Mean gain of the chosen plan on the hosts that chose it, in points."""
    over_wait: Estimate
    """Gain of the chosen plan on the other half of the hosts: an estimate that the choice did not inflate."""
    hindsight: Estimate
    """The gain of the plan that is best on each host itself, or of none: chosen by the return, which ends with the
    validation accuracy, and measured with the test accuracy in its place. It takes as many episodes as there are plans
    for each host, and shows what a controller that knew its host could gain with one seed."""


class Headroom(Contract):
    """Gains of single seeds over never growing on the hosts of a set; equal settings and seed give equal figures."""

    set: str
    """Name of the host set."""
    horizon: Annotated[int, Field(ge=1, le=100_000)]
    """Epochs of an episode."""
    reward: RewardConfig
    """Reward whose points the gains are."""
    seed: Count
    """Random seed that drew the hosts."""
    host_keys: list[Count]
    """Hosts of the training split, equally many of each family."""
    families: dict[str, FamilyHeadroom]
    """By name of the family."""
    all_families: FamilyHeadroom
    """All families with equal weight: the chosen plan is blind to the family."""
    plan_per_family: Estimate
    """The gain of choosing a plan per family, over all families with equal weight, on the hosts that chose nothing."""
