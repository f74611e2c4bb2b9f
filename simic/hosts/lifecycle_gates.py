"""Lifecycle gates G0 to G5: pure functions from evidence arrays to (passed, reason).

All arrays broadcast together; missing evidence is NaN or -1 and never passes. ``rules`` holds the bounds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simic.contracts.settings.lifecycle import LifecycleConfig

__all__ = [
    "GateResult",
    "has_gradient",
    "has_impact",
    "has_reached_target",
    "is_reset",
    "is_sane",
    "is_stable",
]


class GateResult(NamedTuple):
    """Elementwise verdicts; the reason is empty where passed."""

    passed: NDArray[np.bool_]
    reason: NDArray[np.str_]


def _judge(*checks: tuple[ArrayLike, str]) -> GateResult:
    """Combine checks; the first failed one gives the reason."""
    failed = [~np.asarray(good, dtype=bool) for good, _ in checks]
    reason = np.select(np.broadcast_arrays(*failed), [name for _, name in checks], default="")
    return GateResult(np.asarray(reason == ""), np.asarray(reason, dtype=np.str_))


def is_sane(
    rules: LifecycleConfig, *, is_known: ArrayLike, keeps_shape: ArrayLike, birth_deviation: ArrayLike
) -> GateResult:
    """G0: the blueprint is known, keeps its input's shape and is the identity at initialisation."""
    return _judge(
        (is_known, "unknown blueprint"),
        (keeps_shape, "shape changed"),
        (np.asarray(birth_deviation) <= rules.birth_tolerance, "not an identity at birth"),
    )


def has_gradient(*, parameters: ArrayLike, gradient_norm: ArrayLike) -> GateResult:
    """G1: the probe's gradient is finite and nonzero; a seed without parameters passes."""
    norm, none = np.asarray(gradient_norm), np.asarray(parameters) == 0
    return _judge((none | np.isfinite(norm), "gradient not finite"), (none | (norm > 0), "gradient is zero"))


def is_stable(
    rules: LifecycleConfig,
    *,
    stage_epochs: ArrayLike,
    parameters: ArrayLike,
    is_finite: ArrayLike,
    gradient_health: ArrayLike,
) -> GateResult:
    """G2: the seed has trained long enough, with finite parameters and a healthy gradient."""
    none = np.asarray(parameters) == 0
    return _judge(
        (np.asarray(stage_epochs) >= rules.training_epochs, "dwell not served"),
        (is_finite, "parameters not finite"),
        (none | (np.asarray(gradient_health) >= rules.min_gradient_health), "gradient unhealthy"),
    )


def has_reached_target(*, alpha: ArrayLike, alpha_target: ArrayLike) -> GateResult:
    """G3: alpha equals its target exactly."""
    return _judge((np.asarray(alpha) == np.asarray(alpha_target), "alpha is on its way"))


def has_impact(rules: LifecycleConfig, *, contribution: ArrayLike, contribution_epochs: ArrayLike) -> GateResult:
    """G4: the contribution is measured, recent and large enough."""
    age, least = np.asarray(contribution_epochs), rules.min_contribution
    too_small = "contribution is negative" if least == 0.0 else f"contribution is below {least:g}"
    return _judge(
        (np.isfinite(contribution) & (age >= 0), "contribution not measured"),
        (age <= rules.max_contribution_age, "contribution is stale"),
        (np.asarray(contribution) >= least, too_small),
    )


def is_reset(*, is_clear: ArrayLike) -> GateResult:
    """G5: parameters and momentum equal those of an unused slot."""
    return _judge((is_clear, "slot is not clean"))
