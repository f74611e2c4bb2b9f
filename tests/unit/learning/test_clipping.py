"""Gradients before and after the clip, by group."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from simic.learning.clipping import clip_by_group


def group(name: str, *gradients: list[float] | None) -> dict[str, object]:
    parameters = [nn.Parameter(torch.zeros(1 if values is None else len(values))) for values in gradients]
    for parameter, values in zip(parameters, gradients, strict=True):
        parameter.grad = None if values is None else torch.tensor(values)
    return {"name": name, "params": parameters}


def floats(found: dict[str, Tensor]) -> dict[str, float]:
    return {name: float(value) for name, value in found.items()}


def test_m13_norms_before_and_after_the_clip_and_whether_it_changed_them() -> None:
    """3-4-5: the policy has norm 5 and is clipped to 2, the value has 0.5 and is not; after means as it is then."""
    policy, value = group("policy", [3.0], [0.0, 4.0], None), group("value", [0.3, 0.4])
    found = floats(clip_by_group([policy, value], 2.0))
    assert found == pytest.approx(
        {
            "grad_norm_policy": 5.0,
            "clipped_grad_norm_policy": 2.0,
            "clipped_policy": 1.0,
            "grad_norm_value": 0.5,
            "clipped_grad_norm_value": 0.5,
            "clipped_value": 0.0,
        },
        rel=1e-5,
    )
    gradients = [one.grad for one in policy["params"] if one.grad is not None]  # type: ignore[attr-defined]
    assert torch.cat(gradients).norm().item() == pytest.approx(found["clipped_grad_norm_policy"], rel=1e-6)


def test_m13_a_norm_at_the_bound_is_not_clipped_and_a_group_without_gradients_has_no_norm() -> None:
    assert set(clip_by_group([group("policy", None)], 1.0)) == set()
    assert floats(clip_by_group([group("policy", [1.0])], 1.0))["clipped_policy"] == 0.0
