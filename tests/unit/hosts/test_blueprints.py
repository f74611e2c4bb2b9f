"""Every blueprint is an identity at birth, feels a gradient at once, and can learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from simic.hosts.anatomy import WIDTH
from simic.hosts.catalogue import blueprint_names, load_blueprint
from simic.hosts.protocols import Blueprint

SIZES = {"norm": 48, "gate": 220, "bottleneck": 220, "dense": 612, "heavy": 1640, "dropout": 0}
LEARNING = sorted(name for name, size in SIZES.items() if size)


def _born(name: str, seeds: int = 3) -> tuple[Blueprint, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    blueprint = load_blueprint(name)
    parameters = blueprint.birth(torch.randn(seeds, blueprint.parameters, generator=generator))
    return blueprint, parameters, torch.randn(seeds, 32, WIDTH, generator=generator)


def test_sizes_are_as_documented() -> None:
    assert {name: load_blueprint(name).parameters for name in blueprint_names()} == SIZES


@pytest.mark.parametrize("name", sorted(SIZES))
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_l2_identity_at_birth(name: str, scale: float) -> None:
    blueprint, parameters, h = _born(name)
    delta = blueprint.delta(parameters, h * scale, None)
    assert delta.shape == h.shape
    assert delta.abs().max() <= 1e-5


@pytest.mark.parametrize("name", LEARNING)
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_l2_gradient_at_birth_is_finite_and_not_zero(name: str, scale: float) -> None:
    blueprint, parameters, h = _born(name)
    parameters.requires_grad_()
    target = h.roll(1, dims=2)
    (blueprint.delta(parameters, h * scale, None) - target).square().mean().backward()
    norms = parameters.grad.norm(dim=1)
    assert norms.isfinite().all()
    assert (norms > 0).all()


@pytest.mark.parametrize("name", LEARNING)
def test_l2_twenty_steps_reduce_a_toy_loss(name: str) -> None:
    """The task: twice the state where its first feature is positive, its unit vector elsewhere."""
    blueprint, parameters, h = _born(name)
    target = torch.where(h[..., :1] > 0, 2 * h, h / h.norm(dim=2, keepdim=True))
    parameters = parameters.clone().requires_grad_()
    optimizer = torch.optim.SGD([parameters], lr=0.05, momentum=0.9)
    losses = []
    for _ in range(21):
        per_seed = (h + blueprint.delta(parameters, h, None) - target).square().mean(dim=(1, 2))
        losses.append(per_seed.detach())
        optimizer.zero_grad()
        per_seed.sum().backward()
        optimizer.step()
    assert (losses[-1] < losses[0] * 0.99).all()


@pytest.mark.parametrize("name", sorted(SIZES))
def test_seeds_do_not_see_each_other(name: str) -> None:
    blueprint, parameters, h = _born(name)
    parameters = parameters + 0.1
    noise = torch.rand(h.shape, generator=torch.Generator().manual_seed(1))
    together = blueprint.delta(parameters, h, noise)
    for row in range(len(h)):
        alone = blueprint.delta(parameters[row : row + 1], h[row : row + 1], noise[row : row + 1])
        assert torch.equal(alone[0], together[row])


def test_norm_can_take_out_the_size_of_the_state() -> None:
    blueprint = load_blueprint("norm")
    h = torch.randn(1, 64, WIDTH, generator=torch.Generator().manual_seed(0)) * torch.logspace(-1, 1, 64)[None, :, None]
    parameters = torch.cat([torch.full((1, WIDTH), 1 / 0.35), torch.zeros(1, WIDTH)], dim=1)
    sizes = (h + blueprint.delta(parameters, h, None)).square().mean(dim=2).sqrt()
    assert sizes.std() < 0.01 * h.square().mean(dim=2).sqrt().std()


def test_dropout_keeps_the_mean_and_rests_in_evaluation() -> None:
    blueprint, parameters, _ = _born("dropout", seeds=1)
    h = torch.ones(1, 4096, WIDTH)
    noise = torch.rand(h.shape, generator=torch.Generator().manual_seed(2))
    out = h + blueprint.delta(parameters, h, noise)
    assert set(np.unique(out.numpy()).round(4).tolist()) == {0.0, 2.5}
    assert out.mean() == pytest.approx(1.0, abs=0.02)
    assert not blueprint.delta(parameters, h, None).any()
