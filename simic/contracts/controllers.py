"""How a controller is named across processes, and what a search found for those that follow plans or rules."""

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
"""Order of controllers wherever several are shown: in receipts, tables, pictures and worked queries."""
Epochs = Annotated[int, Field(ge=0, le=100_000)]
Turn = Annotated[int, Field(ge=1, le=100_000)]
AccuracyChange = Annotated[float, Field(ge=-1.0, le=1.0)]


class PlannedSeed(Contract):
    """One seed of a fixed plan: germinated at an epoch, then carried to fossilisation as soon as each step is legal."""

    epoch: Epochs
    slot: Annotated[int, Field(ge=0, le=1023)]
    blueprint: BlueprintName
    tempo: Annotated[int, Field(ge=1, le=1000)] = 3
    alpha_target: Annotated[float, Field(gt=0, le=1)] = 1.0
    alpha_speed: Annotated[int, Field(ge=0, le=1000)] = 0
    alpha_curve: AlphaCurve = AlphaCurve.LINEAR


class Plan(Contract):
    """A schedule that looks at nothing but the epoch and the lifecycle."""

    seeds: Annotated[list[PlannedSeed], Field(max_length=64)] = Field(default_factory=list)


class HeuristicRules(Contract):
    """The thresholds of the heuristic; the defaults are those written down by hand."""

    window: Annotated[int, Field(ge=0, lt=HISTORY_EPOCHS)] = 2
    """Epochs over which validation accuracy is compared. A shorter history is no plateau and no fall; with 0 there is
    no trend to look at: it germinates whenever there is room and time, and blames no seed for a fall."""
    plateau: AccuracyChange = 0.02
    """Gain in validation accuracy over the window that still counts as none."""
    falls: Annotated[float, Field(gt=0.0, le=1.0)] = 0.05
    """Loss of validation accuracy over the window that a blended seed is blamed for."""
    keep: AccuracyChange = 0.01
    """Contribution, share of validation samples, from which a held seed is kept."""
    hurts: AccuracyChange = -0.02
    """Contribution below which a held seed is removed; at most ``keep``."""
    patience: Epochs = 3
    """Epochs a held seed has to reach ``keep``."""
    first_epoch: Epochs = 0
    """Epochs trained before the first germination."""
    time_needed: Epochs = 8
    """Epochs that must remain for a germination: to train, to blend and to prove itself."""
    blueprints: Annotated[list[BlueprintName], Field(max_length=256)] = Field(default_factory=list)
    """In the order in which they have their turn; empty stands for all there are, in the order of the vocabulary."""
    blueprint_epochs: Turn = 3
    """Epochs for which it is one blueprint's turn."""
    slot_epochs: Turn = 1
    """Epochs for which it is one empty slot's turn."""
    alpha_speed: Literal[0, 3, 5, 8] = 3
    """Epochs of the ramp of a seed that begins to blend."""

    @model_validator(mode="after")
    def _keeps_no_seed_that_hurts(self) -> HeuristicRules:
        if self.hurts > self.keep:
            raise ValueError(f"hurts {self.hurts} exceeds keep {self.keep}: a seed would be kept and removed")
        return self


class TunedRules(Contract):
    """The best rules found for the heuristic."""

    rules: HeuristicRules
    over_wait: Estimate
    """Points, measured on the book's ``confirm_keys``; likewise the next."""
    by_hand_over_wait: Estimate
    """Of the rules written down by hand, on the same hosts."""
    candidates: Count
    host_keys: list[Count]
    """Hosts that chose the rules; all of the training split."""


class PlanBook(Contract):
    """Baselines that a search found on training hosts of one set: the best plans and the heuristic's best rules."""

    set: str
    horizon: Annotated[int, Field(ge=1, le=100_000)]
    """Epochs of the episodes searched on."""
    reward: RewardConfig
    """Reward that the search maximises."""
    world_digest: Digest
    """Digest of the code of the hosts, the set, the horizon and the reward; a book with another one is outdated."""
    seed: Count
    """Seed of the random rules that are tried."""
    host_keys: list[Count]
    """Hosts that chose the plans; all of the training split."""
    confirm_keys: list[Count]
    """Training hosts that chose nothing; every difference to never growing in this book was measured on them."""
    candidates: Count
    """Plans tried."""
    blind: Plan
    blind_over_wait: Estimate
    """Points."""
    by_family: dict[str, Plan]
    family_over_wait: dict[str, Estimate]
    """Points, on the hosts of that family alone."""
    heuristic: TunedRules


class ControllerSpec(Contract):
    """Enough to build a controller in another process."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]
    """wait, random, explore, schedule, heuristic, blind, oracle, expert, or learned."""
    policy_path: str | None = None
    """Sealed policy directory of ``learned``."""
    policy_digest: Digest | None = None
    """Of the policy that must lie there; null takes any policy that a trusted key sealed."""
    keyring_path: str | None = None
    """Directory of trusted public keys, against which the policy is verified."""
    is_decisive: bool = True
    """``learned`` draws only the operation and takes the likeliest of the rest; otherwise it explores in every head."""
    plan: Plan | None = None
    """The plan of ``schedule``."""
    rules: HeuristicRules | None = None
    """The rules of ``heuristic``; null stands for those of the plan book of the hosts' set."""
    plans_path: str | None = None
    """Folder whose plan books come before the shipped ones; null knows only the shipped ones."""
