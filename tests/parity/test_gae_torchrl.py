"""Generalised advantages against an independent package, which holds its masks and discount in float32."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from simic.numerics.gae import gae


def _reference() -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        functional = pytest.importorskip(
            "torchrl.objectives.value.functional", reason="TorchRL is not installed (extra dev)"
        )
    return functional.generalized_advantage_estimate


@pytest.mark.parametrize(("steps", "batch", "seed"), [(150, 32, 0), (1, 4, 1), (37, 9, 2)])
@pytest.mark.parametrize("lambda_", [0.0, 0.95, 1.0])
def test_equal_to_torchrl_with_terminated_and_truncated_ends(steps: int, batch: int, seed: int, lambda_: float) -> None:
    estimate = _reference()
    draw = np.random.default_rng(seed)
    shape = (steps, batch)
    is_cut = draw.random(shape) < 0.05
    is_cut[-1] = True
    terminated = is_cut & (draw.random(shape) < 0.5)
    values, elsewhere, rewards = draw.normal(size=(3, *shape))
    following = np.where(is_cut, elsewhere, np.concatenate([values[1:], elsewhere[:1]]))
    ours = gae(
        rewards=torch.from_numpy(rewards),
        discounts=torch.from_numpy(np.where(terminated, 0.0, 0.98)),
        values=torch.from_numpy(values),
        next_values=torch.from_numpy(following),
        is_cut=torch.from_numpy(is_cut),
        lambda_=lambda_,
    )

    def theirs(column: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(column.T)).unsqueeze(-1)

    advantages, returns = estimate(  # type: ignore[operator]
        0.98, lambda_, *(theirs(column) for column in (values, following, rewards, is_cut, terminated))
    )
    np.testing.assert_allclose(ours.advantages.numpy(), advantages[..., 0].t().numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(ours.returns.numpy(), returns[..., 0].t().numpy(), rtol=1e-5, atol=1e-5)
