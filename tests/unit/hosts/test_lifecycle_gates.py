"""Gates answer from evidence alone and fail closed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simic.contracts.settings.lifecycle import LifecycleConfig
from simic.hosts import lifecycle_gates

NAN = float("nan")
RULES = LifecycleConfig()


@pytest.mark.parametrize(
    ("evidence", "reason"),
    [
        ({}, ""),
        ({"is_known": False}, "unknown blueprint"),
        ({"keeps_shape": False}, "shape changed"),
        ({"birth_deviation": 1.1e-5}, "not an identity at birth"),
        ({"birth_deviation": NAN}, "not an identity at birth"),
    ],
)
def test_g0_sanity(evidence: dict[str, Any], reason: str) -> None:
    result = lifecycle_gates.is_sane(
        RULES, **({"is_known": True, "keeps_shape": True, "birth_deviation": 1e-5} | evidence)
    )
    assert (bool(result.passed), str(result.reason)) == (reason == "", reason)


@pytest.mark.parametrize(
    ("parameters", "norm", "reason"),
    [
        (48, 0.1, ""),
        (48, 0.0, "gradient is zero"),
        (48, NAN, "gradient not finite"),
        (48, np.inf, "gradient not finite"),
        (0, NAN, ""),
    ],
)
def test_g1_gradient(parameters: int, norm: float, reason: str) -> None:
    result = lifecycle_gates.has_gradient(parameters=parameters, gradient_norm=norm)
    assert (bool(result.passed), str(result.reason)) == (reason == "", reason)


@pytest.mark.parametrize(
    ("evidence", "reason"),
    [
        ({}, ""),
        ({"stage_epochs": 0}, "dwell not served"),
        ({"is_finite": False}, "parameters not finite"),
        ({"gradient_health": 0.69}, "gradient unhealthy"),
        ({"gradient_health": NAN}, "gradient unhealthy"),
        ({"gradient_health": NAN, "parameters": 0}, ""),
    ],
)
def test_g2_stability(evidence: dict[str, Any], reason: str) -> None:
    good = {"stage_epochs": 1, "parameters": 48, "is_finite": True, "gradient_health": 0.7}
    result = lifecycle_gates.is_stable(RULES, **(good | evidence))
    assert (bool(result.passed), str(result.reason)) == (reason == "", reason)


def test_g3_interface_wants_the_very_target() -> None:
    result = lifecycle_gates.has_reached_target(
        alpha=np.float32([0.5, 0.49, 0.7]), alpha_target=np.float32([0.5, 0.5, NAN])
    )
    assert result.passed.tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("contribution", "age", "reason"),
    [
        (0.0, 0, ""),
        (0.1, 1, ""),
        (0.1, 2, "contribution is stale"),
        (-1e-6, 0, "contribution is negative"),
        (NAN, 0, "contribution not measured"),
        (0.1, -1, "contribution not measured"),
    ],
)
def test_g4_impact(contribution: float, age: int, reason: str) -> None:
    result = lifecycle_gates.has_impact(RULES, contribution=contribution, contribution_epochs=age)
    assert (bool(result.passed), str(result.reason)) == (reason == "", reason)


def test_g5_reset() -> None:
    result = lifecycle_gates.is_reset(is_clear=np.array([[True, False]]))
    assert result.passed.tolist() == [[True, False]]
    assert result.reason.tolist() == [["", "slot is not clean"]]
