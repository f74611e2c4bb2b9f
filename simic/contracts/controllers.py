"""How a controller is named across processes, and the fixed plans behind two of them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simic.contracts.actions import AlphaCurve, BlueprintName
from simic.contracts.base import Contract, Count, Digest, Finite

__all__ = ["ControllerSpec", "Plan", "PlanBook", "PlannedSeed"]


class PlannedSeed(Contract):
    """One seed of a fixed plan: germinated at an epoch, then carried to fossilisation as soon as each step is legal."""

    epoch: Annotated[int, Field(ge=0, le=100_000)]
    slot: Annotated[int, Field(ge=0, le=1023)]
    blueprint: BlueprintName
    tempo: Annotated[int, Field(ge=1, le=1000)] = 3
    alpha_target: Annotated[float, Field(gt=0, le=1)] = 1.0
    alpha_speed: Annotated[int, Field(ge=0, le=1000)] = 0
    alpha_curve: AlphaCurve = AlphaCurve.LINEAR


class Plan(Contract):
    """A schedule that looks at nothing but the epoch and the lifecycle."""

    seeds: Annotated[list[PlannedSeed], Field(max_length=64, default_factory=list)]


class PlanBook(Contract):
    """The best fixed plans found on training hosts: one for all, one per family."""

    set: str
    host_keys: list[Count]
    """Hosts the search used; none of them is a test host."""
    candidates: Count
    world_digest: Digest
    """Of the code and settings of the hosts searched on."""
    blind: Plan
    blind_over_wait: Finite
    by_family: dict[str, Plan]
    family_over_wait: dict[str, Finite]


class ControllerSpec(Contract):
    """Enough to build a controller in another process."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]
    """wait, random, explore, schedule, heuristic, blind, oracle, or learned."""
    policy_path: str | None = None
    """Sealed policy directory of ``learned``."""
    keyring_path: str | None = None
    """Directory of trusted public keys, against which the policy is verified."""
    is_decisive: bool = True
    """``learned`` draws only the operation and takes the likeliest of the rest; otherwise it explores in every head."""
    plan: Plan | None = None
    """The plan of ``schedule``."""
