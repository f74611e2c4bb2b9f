"""Specifications of controllers, and the results of a search for plans and rules."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from simic.contracts.actions import AlphaCurve, BlueprintName
from simic.contracts.base import Contract, Count, Digest, Finite
from simic.contracts.names import (
    BLIND,
    CANDIDATE,
    CHAMPION,
    HEURISTIC,
    LEARNED,
    ORACLE,
    RANDOM,
    SYMPTOM,
    WAIT,
    consulting_name,
)
from simic.contracts.results.trials import Estimate
from simic.contracts.rewards import RewardConfig
from simic.contracts.settings.lifecycle import GovernorConfig, LifecycleConfig
from simic.contracts.state import HISTORY_EPOCHS

__all__ = [
    "COMPARISON_CONTROLLERS",
    "CONTROLLER_ORDER",
    "SEARCHED",
    "TRIAL_CONTROLLERS",
    "ControllerSpec",
    "FittedTree",
    "HeuristicRules",
    "Plan",
    "PlanBook",
    "PlanTree",
    "PlannedSeed",
    "TreeLeaf",
    "TreeSplit",
    "TunedRules",
]

CONTROLLER_ORDER = (
    WAIT, RANDOM, "explore", "complete", "schedule", HEURISTIC, BLIND, SYMPTOM, ORACLE, "expert", "simulate",
    "hindsight", LEARNED, CHAMPION, CANDIDATE,
)  # fmt: skip
"""Order in which controllers are shown: in receipts, tables, plots and worked queries."""
COMPARISON_CONTROLLERS = (WAIT, RANDOM, HEURISTIC, BLIND, SYMPTOM, ORACLE)
"""Controllers that every candidate of a set with a plan book is compared with. The oracle is told the family; its plans
were searched, so it is no upper bound."""
TRIAL_CONTROLLERS = (*COMPARISON_CONTROLLERS, CHAMPION)
"""Controllers of trials if none are named."""
SEARCHED = ("simulate", "hindsight")
"""Arms of comparisons that grow several episodes on every host and take the one with the best return. They are no
controllers: their choice needs the end of an episode."""
Epochs = Annotated[int, Field(ge=0, le=100_000)]
Node = Annotated[int, Field(ge=0, le=2046)]
Turn = Annotated[int, Field(ge=1, le=100_000)]
_KARN_FIELDS = frozenset({"karn_path", "karn_digest"})
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
    """Return of the default rules minus that of never growing, in points, on the ``confirm_keys`` of the book."""
    candidates: Count
    host_keys: list[Count]
    """Hosts on which the rules were chosen, all of the training split."""


class TreeSplit(Contract):
    """An inner node: a host goes left if its feature is at most the threshold, else right."""

    feature: Annotated[str, Field(pattern=r"^(context|(slot|layer)\.[0-9]{1,4})\.[A-Za-z0-9_=]{1,64}$")]
    """Name of a column: ``context.NAME``, ``slot.INDEX.NAME`` or ``layer.INDEX.NAME``."""
    threshold: Finite
    left: Node
    right: Node


class TreeLeaf(Contract):
    """A leaf: the hosts that arrive here follow one plan."""

    plan: Annotated[int, Field(ge=0, le=1023)]
    """Index into the tree's ``plans``."""


class PlanTree(Contract):
    """A decision tree that chooses a plan from the observation after the first epoch."""

    nodes: Annotated[list[TreeSplit | TreeLeaf], Field(min_length=1, max_length=2047)]
    """The first node is the root; the children of a node come after it."""
    plans: Annotated[list[Plan], Field(min_length=1, max_length=1024)]
    """Plans to choose from; no seed germinates before epoch 1."""

    @model_validator(mode="after")
    def _ends_in_a_plan(self) -> PlanTree:
        for index, node in enumerate(self.nodes):
            if isinstance(node, TreeLeaf):
                if node.plan >= len(self.plans):
                    raise ValueError(f"node {index} names plan {node.plan}, but there are {len(self.plans)} plans")
            elif not all(index < child < len(self.nodes) for child in (node.left, node.right)):
                raise ValueError(
                    f"node {index} has children {node.left} and {node.right}; expected nodes after it, "
                    f"below {len(self.nodes)}"
                )
        if any(seed.epoch == 0 for plan in self.plans for seed in plan.seeds):
            raise ValueError("a seed germinates at epoch 0, before the tree is read")
        return self


class FittedTree(Contract):
    """The tree of ``symptom``, fitted to the returns of its plans."""

    tree: PlanTree
    over_wait: Estimate
    """Paired difference to never growing, in points, on the ``confirm_keys`` of the book."""
    host_keys: list[Count]
    """Hosts on which the tree was fitted, all of the training split; every plan was grown on each."""
    depth: Annotated[int, Field(ge=1, le=10)]
    """Largest number of splits between the root and a leaf."""
    leaf_hosts: Annotated[int, Field(ge=1, le=100_000)]
    """Least number of fitted hosts in a leaf."""


class PlanBook(Contract):
    """Baselines found by a search on training hosts of one set: best plans, rules of the heuristic, and a tree."""

    set: str
    horizon: Annotated[int, Field(ge=1, le=100_000)]
    """Number of epochs of the episodes searched on."""
    reward: RewardConfig
    """Reward that the search maximises."""
    prune_epochs: Annotated[int, Field(ge=0, le=100)] = 0
    """``world.prune_epochs`` of the search."""
    blend: str = "own"
    """``world.blend`` of the search."""
    lifecycle: LifecycleConfig = LifecycleConfig()
    """``world.lifecycle`` of the search."""
    governor: GovernorConfig = GovernorConfig()
    """``world.governor`` of the search."""
    world_digest: Digest
    """Digest of the code of the hosts, the set and the six settings above; with another digest a book is outdated."""
    pictures_digest: Digest | None = None
    """Digest of the user's pictures that the hosts read; null for other hosts and the digits. A book of other pictures
    is outdated."""
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
    symptom: FittedTree | None = None
    """Null in books of earlier versions; then there is no controller ``symptom``."""


class ControllerSpec(Contract):
    """Everything needed to build a controller in another process."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]
    """Name: wait, random, explore, schedule, heuristic, blind, symptom, oracle, expert or learned."""
    policy_path: str | None = None
    """Directory of the sealed policy for ``learned``."""
    policy_digest: Digest | None = None
    """Digest that the policy must have; null accepts any policy sealed with a trusted key."""
    keyring_path: str | None = None
    """Directory of trusted public keys that verify the policy, and the Karn that it consults."""
    karn_path: str | None = None
    """Directory of the sealed Karn that ``learned`` consults; null for a policy that chooses blueprints itself."""
    karn_digest: Digest | None = None
    """Digest that this Karn must have; null exactly where ``karn_path`` is."""
    is_decisive: bool = True
    """Whether ``learned`` samples only the operation and takes the most likely other factors; otherwise it samples
    every factor."""
    plan: Plan | None = None
    """Plan of ``schedule``."""
    rules: HeuristicRules | None = None
    """Rules of ``heuristic``; null means those of the plan book of the hosts' set."""
    tree: PlanTree | None = None
    """Tree of ``symptom``; null means that of the plan book of the hosts' set."""
    plans_path: str | None = None
    """Folder of plan books that take precedence over the shipped ones; null uses the shipped ones only."""

    @property
    def reported_name(self) -> str:
        """Return the name of the controller in field reports."""
        return self.name if self.karn_digest is None else consulting_name(self.karn_digest)

    def consulting(self, karn_path: str, karn_digest: str) -> ControllerSpec:
        """Return the spec of the same policy consulting a sealed Karn."""
        return self.model_copy(update={"karn_path": karn_path, "karn_digest": karn_digest})

    def expected_digest(self, directory: Path) -> str | None:
        """Return the digest that a sealed directory of this spec must have; None accepts any."""
        return self.karn_digest if self.karn_path == str(directory) else self.policy_digest

    @model_validator(mode="after")
    def _consults_a_known_karn(self) -> ControllerSpec:
        if (self.karn_path is None) != (self.karn_digest is None):
            raise ValueError("karn_path and karn_digest belong together: expected both or neither")
        if self.karn_path is not None and self.policy_path is None:
            raise ValueError(f"karn_path: only a policy consults Karn, and controller {self.name!r} has no policy_path")
        return self

    @model_serializer(mode="wrap")
    def _without_an_absent_karn(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the fields of an absent Karn, so that digests over specs without one stay what they were."""
        fields: dict[str, Any] = handler(self)
        return {name: value for name, value in fields.items() if value is not None or name not in _KARN_FIELDS}
