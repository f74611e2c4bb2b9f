"""A plan book of hosts that never were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simic.contracts.config import RewardConfig
from simic.contracts.controllers import HeuristicRules, Plan, PlanBook, TunedRules
from simic.contracts.receipts import Estimate

__all__ = ["make_book"]


def make_book(blind: Plan, by_family: Mapping[str, Plan], **changed: Any) -> PlanBook:
    """With made-up figures; ``changed`` replaces fields."""
    worth = Estimate(mean=1.0, lower=0.5, upper=1.5, confidence=0.95, n=100)
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
        "blind_over_wait": worth,
        "by_family": dict(by_family),
        "family_over_wait": dict.fromkeys(by_family, worth),
        "heuristic": TunedRules(rules=rules, over_wait=worth, by_hand_over_wait=worth, candidates=9, host_keys=[3]),
    }
    return PlanBook(**{**fields, **changed})
