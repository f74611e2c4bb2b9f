"""Reward families: what a learner is shown for the same experience.

Trials, plan searches and collections count in ``basic`` points whatever family a learner is shown, so policies that
learned from different families stay comparable; ``basic`` gives every family's view of them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from simic.contracts.base import Contract

__all__ = ["DEFAULT_FAMILY", "FAMILIES", "MinimalReward", "Reward", "RewardConfig", "ShapedReward", "SparseReward"]

DEFAULT_FAMILY = "shaped"
"""Of a recipe that names none."""

Price = Annotated[float, Field(ge=0, le=1000)]


class _Prices(Contract):
    """The four constants all families share."""

    accuracy_scale: Annotated[float, Field(gt=0, le=10_000)] = 100.0
    """Points per unit of validation accuracy."""
    rent: Price = 3.0
    """Points that ``rent_parameters`` parameters cost over a whole episode."""
    rent_parameters: Annotated[int, Field(ge=1)] = 1640
    governor_penalty: Price = 10.0
    """Points a panic costs."""

    @property
    def basic(self) -> RewardConfig:
        """The points by which trials judge: the same prices without anything a family adds."""
        return RewardConfig(**{name: getattr(self, name) for name in _Prices.model_fields})


class RewardConfig(_Prices):
    """Family ``basic``: progress minus rent, step by step."""

    family: Literal["basic"] = "basic"


class ShapedReward(_Prices):
    """Family ``shaped``: ``basic`` plus the change of a potential, which no policy can gain from."""

    family: Literal["shaped"] = "shaped"
    potential: Annotated[float, Field(ge=0, le=100)] = 2.0
    """Points by which the potential rises from a host that has grown nothing to one that has grown all it may."""
    contribution_full: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Contribution, as a share of accuracy, beyond which a seed's potential rises no further."""


class SparseReward(_Prices):
    """Family ``sparse``: the sum of ``basic``, told at the end of the episode."""

    family: Literal["sparse"] = "sparse"


class MinimalReward(_Prices):
    """Family ``minimal``: ``sparse``, and a price on every seed placed and every seed given up."""

    family: Literal["minimal"] = "minimal"
    germination_cost: Price = 0.1
    """Points a germination costs."""
    prune_cost: Price = 0.2
    """Points a prune costs."""


FAMILIES: dict[str, type[_Prices]] = {
    "basic": RewardConfig,
    "shaped": ShapedReward,
    "sparse": SparseReward,
    "minimal": MinimalReward,
}
"""Every family that ``curate.reward.family`` may name; each has its file in ``simic/curation/sql/rewards``."""


def _name_family(value: Any) -> Any:
    return {"family": DEFAULT_FAMILY, **value} if isinstance(value, dict) else value


Reward = Annotated[
    Annotated[RewardConfig | ShapedReward | SparseReward | MinimalReward, Field(discriminator="family")],
    BeforeValidator(_name_family),
]
"""One family with its own constants; a constant of another family is refused."""
