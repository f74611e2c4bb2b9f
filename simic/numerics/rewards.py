"""Reward family ``basic``: progress minus rent, in points.

The SQL of ``curation`` computes the same from the lake's columns; a test holds the two equal to 1e-9.
Shapes: any; all arrays broadcast against each other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["basic_return", "basic_rewards"]


def basic_rewards(
    *,
    accuracy_before: ArrayLike,
    accuracy_after: ArrayLike,
    rent_parameters: ArrayLike,
    governor: ArrayLike,
    accuracy_scale: float,
    rent: float,
    rent_parameters_scale: float,
    horizon: int,
    governor_penalty: float,
) -> NDArray[np.float64]:
    """Return step rewards, float64: ``scale (after - before) - rent p / p_scale / horizon - penalty [panic]``.

    Accuracies are shares in [0, 1]; ``accuracy_after`` of an episode's last step is that of the network to be
    kept. ``rent_parameters`` counts the parameters of seeds alive or fossilised during the step, ``rent`` is what
    ``rent_parameters_scale`` of them cost over ``horizon`` steps. ``governor`` is true where a panic ended the step.

    Raises:
        ValueError: if an input is not finite; an unmeasured accuracy has no reward.
    """
    if rent_parameters_scale <= 0 or horizon <= 0:
        raise ValueError(f"rent_parameters_scale {rent_parameters_scale} and horizon {horizon} must be positive")
    before = np.asarray(accuracy_before, dtype=np.float64)
    after = np.asarray(accuracy_after, dtype=np.float64)
    parameters = np.asarray(rent_parameters, dtype=np.float64)
    panic = np.asarray(governor, dtype=np.bool_)
    rewards = (
        accuracy_scale * (after - before)
        - rent * parameters / rent_parameters_scale / horizon
        - governor_penalty * panic
    )
    if not np.isfinite(rewards).all():
        raise ValueError("rewards must be finite: an accuracy or a parameter count is not a number")
    return np.asarray(rewards, dtype=np.float64)


def basic_return(rewards: ArrayLike, discount: float = 1.0) -> NDArray[np.float64]:
    """Return the discounted sum over the first axis (time), float64; trials report it undiscounted."""
    r_t = np.asarray(rewards, dtype=np.float64)
    weights = np.float64(discount) ** np.arange(r_t.shape[0], dtype=np.float64)
    return np.asarray(np.tensordot(weights, r_t, axes=(0, 0)), dtype=np.float64)
