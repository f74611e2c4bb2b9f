"""What a policy weighed before a decision."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simic.contracts.actions import Action, BehaviourLogProb, Head
from simic.contracts.base import Contract, Digest, Finite, UnitInterval
from simic.contracts.feature_ranges import OutOfRange

__all__ = ["Alternative", "Choice", "Explanation"]


class Choice(Contract):
    """One choice of a head and its probability."""

    choice: str | int | float
    """An operation, a slot index, a blueprint, an alpha target, a ramp in epochs, a curve, or a tempo in epochs."""
    probability: UnitInterval
    """Share that the policy's network gives it among the legal choices."""


class Alternative(Contract):
    """The most likely action of one operation."""

    action: Action
    probability: UnitInterval
    """Probability of the operation."""


class Explanation(Contract):
    """A decision with everything that the policy chose from."""

    policy: Digest
    """Digest of the policy."""
    karn: Digest | None = None
    """Digest of the Karn that chose the blueprint; null if the policy acts alone."""
    action: Action
    """The action that ``decide`` returns for the same arguments."""
    log_prob: BehaviourLogProb
    """Log-probabilities of the action, as a field report has them."""
    value: Finite
    """Expected discounted return from this state on, in points."""
    heads: dict[Head, list[Choice]]
    """Choices of each head that the action uses, in wire order; a slot's given the operation, all others given the
    slot. Choices of probability 0 are left out."""
    out_of_range: list[OutOfRange] | None
    """Measurements that lie outside the data that the policy learned from; null if the policy does not say what those
    were. The more there are, the less is known of what the decision does."""
    alternatives: Annotated[list[Alternative], Field(min_length=1)]
    """The legal operations, the most probable first."""

    @property
    def second(self) -> Alternative | None:
        """Return the most probable alternative with another operation; None if only one operation is legal."""
        return next((other for other in self.alternatives if other.action.op is not self.action.op), None)
