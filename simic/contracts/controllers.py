"""Specifications of controllers, and the results of a search for plans and rules."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from simic.contracts.actions import AlphaCurve, BlueprintName
from simic.contracts.base import Contract, Count, Digest
from simic.contracts.config import RewardConfig
from simic.contracts.names import CANDIDATE, CHAMPION
from simic.contracts.receipts import Estimate
from simic.contracts.state import HISTORY_EPOCHS

__all__ = ["CONTROLLER_ORDER", "ControllerSpec", "HeuristicRules", "Plan", "PlanBook", "PlannedSeed", "TunedRules"]

CONTROLLER_ORDER = (
    "wait", "random", "explore", "schedule", "heuristic", "blind", "oracle", "expert", "learned", CHAMPION,
    CANDIDATE,
)  # fmt: skip
"""Order in which controllers are shown: in receipts, tables, plots and worked queries."""
Epochs = Annotated[int, Field(ge=0, le=100_000)]
Turn = Annotated[int, Field(ge=1, le=100_000)]
AccuracyChange = Annotated[float, Field(ge=-1.0, le=1.0)]


class PlannedSeed(Contract):
    """One seed of a fixed plan: germinated at an epoch, then advanced to fossilisation as soon as possible."""

    epoch: Epochs
    slot: Annotated[int, Field(ge=0, le=1023)]
    blueprint: BlueprintName
    tempo: Annotated[int, Field(ge=1, le=1000)] = 3
    alpha_target: Annotated[float, Field(gt=0, le=1)] = 1.0
    alpha_speed: Annotated[int, Field(ge=0, le=1000)] = 0
    alpha_curve: AlphaCurve = AlphaCurve.LINEAR


class Plan(Contract):
    """A schedule that depends only on the epoch and the lifecycle."""

    seeds: Annotated[list[PlannedSeed], Field(max_length=64)] = Field(default_factory=list)


class HeuristicRules(Contract):
    """Thresholds of the heuristic; the defaults were chosen by hand."""

    window: Annotated[int, Field(ge=0, lt=HISTORY_EPOCHS)] = 2
    """Number of epochs over which validation accuracy is compared. A shorter history counts as neither plateau nor
    fall. With 0 there is no trend: seeds germinate whenever there is room and time, and none is pruned for a fall."""
    plateau: AccuracyChange = 0.02
    """Gain in validation accuracy over the window below which it counts as a plateau."""
    falls: Annotated[float, Field(gt=0.0, le=1.0)] = 0.05
    """Loss of validation accuracy over the window at which a blended seed is pruned."""
    keep: AccuracyChange = 0.01
    """Contribution, as a share of validation samples, at which a held seed is kept."""
    hurts: AccuracyChange = -0.02
    """Contribution below which a held seed is removed; at most ``keep``."""
    patience: Epochs = 3
    """Largest number of epochs that a held seed may take to reach ``keep``."""
    first_epoch: Epochs = 0
    """Number of epochs before the first germination."""
    time_needed: Epochs = 8
    """Least number of remaining epochs for a germination: time to train, to blend and to be measured."""
    blueprints: Annotated[list[BlueprintName], Field(max_length=256)] = Field(default_factory=list)
    """Blueprints in the order of rotation; empty means all, in the order of the vocabulary."""
    blueprint_epochs: Turn = 3
    """Number of epochs before the rotation moves to the next blueprint."""
    slot_epochs: Turn = 1
    """Number of epochs before the rotation moves to the next empty slot."""
    alpha_speed: Literal[0, 3, 5, 8] = 3
    """Number of epochs of the ramp with which a seed is blended."""

    @model_validator(mode="after")
    def _keeps_no_seed_that_hurts(self) -> HeuristicRules:
        if self.hurts > self.keep:
            raise ValueError(f"hurts {self.hurts} exceeds keep {self.keep}: a seed would be kept and removed")
        return self


class TunedRules(Contract):
    """The best rules found for the heuristic."""

    rules: HeuristicRules
    over_wait: Estimate
    """Return minus that of never growing, in points, on the ``confirm_keys`` of the book."""
    by_hand_over_wait: Estimate
    """The same for the default rules, on the same hosts."""
    candidates: Count
    host_keys: list[Count]
    """Hosts on which the rules were chosen, all of the training split."""


class PlanBook(Contract):
    """Baselines found by a search on training hosts of one set: best plans and best rules of the heuristic."""

    set: str
    horizon: Annotated[int, Field(ge=1, le=100_000)]
    """Number of epochs of the episodes searched on."""
    reward: RewardConfig
    """Reward that the search maximises."""
    world_digest: Digest
    """Digest of the code of the hosts, the set, the horizon and the reward; with another digest a book is outdated."""
    seed: Count
    """Seed with which random rules were drawn."""
    host_keys: list[Count]
    """Hosts on which the plans were chosen, all of the training split."""
    confirm_keys: list[Count]
    """Training hosts used for no choice; all differences to never growing in this book were measured on them."""
    candidates: Count
    """Number of plans tried."""
    blind: Plan
    blind_over_wait: Estimate
    """Paired difference to never growing, in points."""
    by_family: dict[str, Plan]
    family_over_wait: dict[str, Estimate]
    """Paired difference to never growing, in points, on the hosts of that family."""
    heuristic: TunedRules


class ControllerSpec(Contract):
    """Everything needed to build a controller in another process."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]
    """Name: wait, random, explore, schedule, heuristic, blind, oracle, expert or learned."""
    policy_path: str | None = None
    """Directory of the sealed policy for ``learned``."""
    policy_digest: Digest | None = None
    """Digest that the policy must have; null accepts any policy sealed with a trusted key."""
    keyring_path: str | None = None
    """Directory of trusted public keys that verify the policy."""
    is_decisive: bool = True
    """Whether ``learned`` samples only the operation and takes the most likely other factors; otherwise it samples
    every factor."""
    plan: Plan | None = None
    """Plan of ``schedule``."""
    rules: HeuristicRules | None = None
    """Rules of ``heuristic``; null means those of the plan book of the hosts' set."""
    plans_path: str | None = None
    """Folder of plan books that take precedence over the shipped ones; null uses the shipped ones only."""
