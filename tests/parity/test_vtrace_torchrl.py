"""V-trace against an independent package, which is right at truncations from 0.14.1 on."""

from __future__ import annotations

import warnings
from importlib.metadata import version

import numpy as np
import pytest
import torch
from packaging.version import Version

from simic.numerics.vtrace import vtrace


def _reference() -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        functional = pytest.importorskip(
            "torchrl.objectives.value.functional", reason="TorchRL is not installed (extra dev)"
        )
    if Version(version("torchrl")) < Version("0.14.1"):
        pytest.skip("TorchRL before 0.14.1 is wrong at truncations")
    return functional.vtrace_advantage_estimate


@pytest.mark.parametrize(("steps", "batch", "seed"), [(150, 32, 0), (1, 4, 1), (37, 9, 2)])
@pytest.mark.parametrize("bounds", [(1.0, 1.0), (2.0, 0.5)])
def test_pd1_equal_to_torchrl(steps: int, batch: int, seed: int, bounds: tuple[float, float]) -> None:
    estimate = _reference()
    generator = torch.Generator().manual_seed(seed)

    def normal() -> torch.Tensor:
        return torch.randn(steps, batch, generator=generator, dtype=torch.float64)

    is_cut = torch.rand(steps, batch, generator=generator) < 0.05
    is_cut[-1] = True
    terminated = is_cut & (torch.rand(steps, batch, generator=generator) < 0.5)
    values, elsewhere = normal(), normal()
    columns = {
        "log_prob_target": 0.5 * normal(),
        "log_prob_behaviour": 0.5 * normal(),
        "rewards": normal(),
        "values": values,
        "next_values": torch.where(is_cut, elsewhere, torch.cat([values[1:], elsewhere[:1]])),
    }
    rho_bar, c_bar = bounds
    result = vtrace(
        **columns,
        discounts=torch.where(terminated, 0.0, 0.98).double(),
        is_cut=is_cut,
        rho_bar=rho_bar,
        c_bar=c_bar,
        pg_rho_bar=rho_bar,
    )

    def theirs(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.t().unsqueeze(-1).contiguous()

    advantages, vs = estimate(
        0.98,
        *(
            theirs(columns[name])
            for name in ("log_prob_target", "log_prob_behaviour", "values", "next_values", "rewards")
        ),
        theirs(is_cut),
        theirs(terminated),
        rho_thresh=rho_bar,
        c_thresh=c_bar,
    )
    np.testing.assert_allclose(result.vs.numpy(), vs[..., 0].t().numpy(), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(result.pg_advantages.numpy(), advantages[..., 0].t().numpy(), rtol=1e-9, atol=1e-9)
