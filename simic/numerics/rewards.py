"""Reward family ``basic``: progress minus rent, in points.

The SQL of ``curation`` computes the same from the lake's columns; a test holds the two equal to 1e-9.
Shapes: any; all arrays broadcast against each other.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Prices", "basic_return", "basic_rewards"]


class Prices(Protocol):
    """The prices of family ``basic``; ``RewardConfig`` holds them."""

    @property
    def accuracy_scale(self) -> float:
        """Return the points per unit of validation accuracy."""

    @property
    def rent(self) -> float:
        """Return the points that ``rent_parameters`` parameters cost over a whole episode."""

    @property
    def rent_parameters(self) -> int:
        """Return the number of parameters that ``rent`` is paid for."""

    @property
    def governor_penalty(self) -> float:
        """Return the points that a panic costs."""


def basic_rewards(
    prices: Prices,
    *,
    horizon: int,
    accuracy_before: ArrayLike,
    accuracy_after: ArrayLike,
    rent_parameters: ArrayLike,
    governor: ArrayLike,
) -> NDArray[np.float64]:
    """Return step rewards, float64: ``scale (after - before) - rent p / p_rent / horizon - penalty [panic]``.

    Accuracies are shares in [0, 1]; ``accuracy_after`` of an episode's last step is that of the network to be kept.
    ``rent_parameters`` counts the parameters p of seeds alive or fossilised during the step; p_rent, which is
    ``prices.rent_parameters``, of them cost ``prices.rent`` over ``horizon`` steps. ``governor`` is true where a panic
    ended the step.

    Raises:
        ValueError: if an input is not finite, as an unmeasured accuracy has no reward, or a divisor is not positive.
    """
    if prices.rent_parameters <= 0 or horizon <= 0:
        raise ValueError(f"rent_parameters {prices.rent_parameters} and horizon {horizon} must be positive")
    before = np.asarray(accuracy_before, dtype=np.float64)
    after = np.asarray(accuracy_after, dtype=np.float64)
    parameters = np.asarray(rent_parameters, dtype=np.float64)
    panic = np.asarray(governor, dtype=np.bool_)
    rewards = (
        prices.accuracy_scale * (after - before)
        - prices.rent * parameters / prices.rent_parameters / horizon
        - prices.governor_penalty * panic
    )
    if not np.isfinite(rewards).all():
        raise ValueError("rewards must be finite: an accuracy or a parameter count is not a number")
    return np.asarray(rewards, dtype=np.float64)


def basic_return(rewards: ArrayLike, discount: float = 1.0) -> NDArray[np.float64]:
    """Return the discounted sum over the first axis (time), float64; trials report it undiscounted."""
    r_t = np.asarray(rewards, dtype=np.float64)
    weights = np.float64(discount) ** np.arange(r_t.shape[0], dtype=np.float64)
    return np.asarray(np.tensordot(weights, r_t, axes=(0, 0)), dtype=np.float64)
