"""A plan book of hosts that never were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simic.contracts.controllers import (
    FittedTree,
    HeuristicRules,
    Plan,
    PlanBook,
    PlanTree,
    TreeLeaf,
    TreeSplit,
    TunedRules,
)
from simic.contracts.results.trials import Estimate
from simic.contracts.rewards import RewardConfig

__all__ = ["fitted_tree", "make_book"]

WORTH = Estimate(mean=1.0, lower=0.5, upper=1.5, confidence=0.95, n=100)


def fitted_tree(nodes: Sequence[TreeSplit | TreeLeaf], plans: Sequence[Plan]) -> FittedTree:
    """A tree with made-up figures."""
    tree = PlanTree(nodes=list(nodes), plans=list(plans))
    return FittedTree(tree=tree, over_wait=WORTH, host_keys=[4], depth=4, leaf_hosts=10)


def make_book(blind: Plan, by_family: Mapping[str, Plan], **changed: Any) -> PlanBook:
    """With made-up figures; ``changed`` replaces fields."""
    rules = HeuristicRules(keep=0.04)
    fields: dict[str, Any] = {
        "set": "toy",
        "horizon": 20,
        "reward": RewardConfig(),
        "world_digest": "0" * 64,
        "seed": 0,
        "host_keys": [1],
        "confirm_keys": [2],
        "candidates": 3,
        "blind": blind,
        "blind_over_wait": WORTH,
        "by_family": dict(by_family),
        "family_over_wait": dict.fromkeys(by_family, WORTH),
        "heuristic": TunedRules(rules=rules, over_wait=WORTH, by_hand_over_wait=WORTH, candidates=9, host_keys=[3]),
    }
    return PlanBook(**{**fields, **changed})
