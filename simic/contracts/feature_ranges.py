"""Ranges of the features that a policy learned from, and the features of a state that lie outside them."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from simic.contracts.base import Contract, Count, Finite

__all__ = ["BOUND", "FeatureRange", "FeatureRanges", "NodeType", "OutOfRange"]

BOUND = 12.0
"""Features are clipped to [-BOUND, BOUND]."""

_FLAG = "_valid"
"""Ending of a feature that says whether a number is there."""
NodeType: TypeAlias = Literal["context", "slot", "layer"]


class FeatureRange(Contract):
    """Smallest and largest value of a feature over all states of the training data."""

    lower: Annotated[float, Field(ge=-BOUND, le=BOUND)]
    upper: Annotated[float, Field(ge=-BOUND, le=BOUND)]

    @model_validator(mode="after")
    def _check_order(self) -> FeatureRange:
        if self.lower > self.upper:
            raise ValueError(f"expected lower <= upper, found {self.lower} and {self.upper}")
        return self


FeatureRanges: TypeAlias = dict[NodeType, Annotated[list[FeatureRange | None], Field(max_length=4096)]]
"""One entry per column of a node type, in order; null for a number that was absent in every state."""


class OutOfRange(Contract):
    """A measurement of a network that is unlike those of the networks that a policy learned from."""

    node: NodeType
    index: Count
    """Which slot or layer, as in the state; 0 for the context, which is the network as a whole."""
    feature: Annotated[str, Field(max_length=128)]
    value: Finite
    """In the unit of the state, at most e^12 where the feature is a logarithm: counts, norms and losses. Changes of
    losses, ratios and rises are differences of logarithms, as the policy reads them."""
    lower: Finite | None
    """Smallest value in the training data; null if it was always absent there."""
    upper: Finite | None

    def __str__(self) -> str:
        """Return the finding in words, such as ``layer 0 width 6, in training 10 to 24``."""
        return self.at("" if self.node == "context" else f"{self.node} {self.index}")

    def at(self, place: str) -> str:
        """Return the finding in words, with ``place`` as the name of the slot or layer; empty for the context."""
        place = f"{place} " if place else ""
        if self.feature.endswith(_FLAG):
            was, now = ("present", "absent") if self.value == 0.0 else ("absent", "present")
            return f"{place}{self.feature.removesuffix(_FLAG)} {now}, in training always {was}"
        known = "absent" if self.lower is None else f"{self.lower:.3g} to {self.upper:.3g}"
        return f"{place}{self.feature} {self.value:.3g}, in training {known}"
