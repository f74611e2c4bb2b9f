"""Every blueprint under every operator is an identity at birth, feels a gradient at once, and can learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from simic.hosts.blueprint_checks import change_of
from simic.hosts.interfaces import Blueprint, Operator, Site
from simic.hosts.plugins import blueprint_names, load_blueprint

SIZES = {"norm": 48, "gate": 220, "bottleneck": 220, "dense": 612, "heavy": 1640, "dropout": 0, "low_rank": 96}
SITES = [Site(8), Site(24), Site(40), Site(8, (4, 4)), Site(12, (5,))]
GROWING = [(name, site) for name in blueprint_names() for site in SITES if load_blueprint(name).suits(site)]
LEARNING = [(name, site) for name, site in GROWING if name != "dropout"]


def _born(name: str, site: Site, seeds: int = 3) -> tuple[Blueprint, Tensor, Tensor]:
    """A blueprint, its parameters at birth and a state it may meet."""
    blueprint = load_blueprint(name)
    generator = torch.Generator().manual_seed(0)
    parameters = blueprint.birth(torch.randn(seeds, blueprint.parameters(site), generator=generator), site)
    return blueprint, parameters, torch.randn(seeds, 32, *site.space, site.width, generator=generator)


def _change(
    blueprint: Blueprint, operator: Operator, parameters: Tensor, h: Tensor, noise: Tensor | None = None
) -> Tensor:
    return change_of(operator, h, blueprint.delta(parameters, h, noise))


def test_sizes_are_as_documented() -> None:
    assert {name: load_blueprint(name).parameters(Site(24)) for name in SIZES} == SIZES


@pytest.mark.parametrize("operator", Operator)
@pytest.mark.parametrize(("name", "site"), GROWING, ids=str)
def test_l2_identity_at_birth(name: str, operator: Operator, site: Site) -> None:
    for scale in (1e-3, 1.0, 1e3):
        blueprint, parameters, h = _born(name, site)
        change = _change(blueprint, operator, parameters, h * scale)
        assert change.shape == h.shape
        assert change.abs().max() <= 1e-5


@pytest.mark.parametrize("operator", Operator)
@pytest.mark.parametrize(("name", "site"), LEARNING, ids=str)
def test_l2_gradient_at_birth_is_finite_and_not_zero(name: str, operator: Operator, site: Site) -> None:
    for scale in (0.1, 1.0, 10.0):
        blueprint, parameters, h = _born(name, site)
        parameters.requires_grad_()
        target = h.roll(1, dims=-1)
        (_change(blueprint, operator, parameters, h * scale) - target).square().mean().backward()
        norms = parameters.grad.norm(dim=1)
        assert norms.isfinite().all()
        assert (norms > 0).all()


@pytest.mark.parametrize("operator", Operator)
@pytest.mark.parametrize(("name", "site"), LEARNING, ids=str)
def test_l2_twenty_steps_reduce_a_toy_loss(name: str, operator: Operator, site: Site) -> None:
    """The task: twice the state where its first feature is positive, its unit vector elsewhere."""
    blueprint, parameters, h = _born(name, site)
    target = torch.where(h[..., :1] > 0, 2 * h, h / h.norm(dim=-1, keepdim=True))
    parameters = parameters.clone().requires_grad_()
    optimizer = torch.optim.SGD([parameters], lr=0.05, momentum=0.9)
    losses = []
    for _ in range(21):
        errors = (h + _change(blueprint, operator, parameters, h) - target).square()
        per_seed = errors.mean(dim=tuple(range(1, errors.dim())))
        losses.append(per_seed.detach())
        optimizer.zero_grad()
        per_seed.sum().backward()
        optimizer.step()
    assert (losses[-1] < losses[0] * 0.995).all()


@pytest.mark.parametrize(("name", "site"), GROWING, ids=str)
def test_seeds_do_not_see_each_other(name: str, site: Site) -> None:
    blueprint, parameters, h = _born(name, site)
    parameters = parameters + 0.1
    noise = torch.rand(*h.shape[:2], site.width, generator=torch.Generator().manual_seed(1))
    together = blueprint.delta(parameters, h, noise)
    for row in range(len(h)):
        alone = blueprint.delta(parameters[row : row + 1], h[row : row + 1], noise[row : row + 1])
        assert torch.equal(alone[0], together[row])


@pytest.mark.parametrize(("name", "site"), GROWING, ids=str)
def test_a_seed_computes_on_the_device_of_its_state(name: str, site: Site) -> None:
    blueprint, parameters, h = _born(name, site)
    delta = blueprint.delta(parameters.to("meta"), h.to("meta"), None)
    assert (delta.device.type, delta.shape) == ("meta", h.shape)


def test_convolutions_grow_on_maps_attention_on_sequences_and_widening_seeds_where_readers_are_known() -> None:
    grown = {name: [site for other, site in GROWING if other == name] for name in blueprint_names()}
    maps = [site for site in SITES if len(site.space) == 2]
    convolutions = {"conv3x3": 9 * 64 + 64 + 16, "depthwise": 9 * 8 + 64 + 16}
    special = {"widen": [], "attention": [Site(12, (5,))], **dict.fromkeys(convolutions, maps)}
    for name, sites in grown.items():
        assert sites == special.get(name, SITES)
    assert {name: load_blueprint(name).parameters(Site(8, (4, 4))) for name in convolutions} == convolutions


@pytest.mark.parametrize("name", ["conv3x3", "depthwise"])
def test_a_convolution_sees_the_eight_neighbours_and_no_further(name: str) -> None:
    site = Site(8, (4, 4))
    blueprint, parameters, h = _born(name, site, seeds=1)
    parameters = parameters + 0.1
    touched = h.clone()
    touched[:, :, 0, 0] += 1.0
    moved = (
        (blueprint.delta(parameters, touched, None) != blueprint.delta(parameters, h, None)).any(dim=-1)[0].any(dim=0)
    )
    assert moved.tolist() == [[row < 2 and column < 2 for column in range(4)] for row in range(4)]


def test_attention_is_that_of_torch_with_a_penalty_for_distance() -> None:
    site = Site(8, (6,))
    blueprint, _, h = _born("attention", site)
    parameters = torch.randn(3, blueprint.parameters(site), generator=torch.Generator().manual_seed(1))
    found, ahead = blueprint.delta(parameters, h, None), torch.arange(6) - torch.arange(6).unsqueeze(1)
    for own, states, mine in zip(parameters, h, found, strict=True):
        query, key, value = (states @ own[:96].view(8, 12)).chunk(3, dim=2)
        penalty = torch.where(ahead > 0, own[-1] * ahead, own[-2] * -ahead)
        read = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=-penalty)
        torch.testing.assert_close(mine, read @ own[96:128].view(4, 8), atol=1e-4, rtol=1e-4)


def test_attention_learns_what_a_place_cannot_know_of_itself() -> None:
    """The task: the mean over all places; a pointwise layer sees one."""
    site, left = Site(8, (4,)), {}
    for name in ("attention", "heavy"):
        blueprint, parameters, _ = _born(name, site, seeds=1)
        h = torch.randn(1, 256, 4, 8, generator=torch.Generator().manual_seed(2))
        target = h.mean(dim=2, keepdim=True).expand_as(h)
        parameters = parameters.requires_grad_()
        optimizer = torch.optim.SGD([parameters], lr=0.5, momentum=0.9)
        for _ in range(80):
            loss = (blueprint.delta(parameters, h, None) - target).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        left[name] = float(loss.detach() / target.square().mean())
    assert left["attention"] < 0.6 < left["heavy"]


def test_convolutions_learn_from_neighbours_what_pointwise_layers_cannot() -> None:
    """The task: half of what lies one column to the right, for all of 512 maps."""
    site, left = Site(8, (4, 4)), {}
    for name in ("conv3x3", "depthwise", "dense", "heavy"):
        blueprint = load_blueprint(name)
        generator = torch.Generator().manual_seed(0)
        parameters = blueprint.birth(torch.randn(1, blueprint.parameters(site), generator=generator), site)
        h = torch.randn(1, 512, 4, 4, 8, generator=generator)
        target = torch.zeros_like(h)
        target[:, :, :, :-1] = 0.5 * h[:, :, :, 1:]
        parameters = parameters.requires_grad_()
        optimizer = torch.optim.SGD([parameters], lr=0.5, momentum=0.9)
        for _ in range(150):
            loss = (blueprint.delta(parameters, h, None) - target).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        left[name] = float(loss.detach() / target.square().mean())
    assert max(left["conv3x3"], left["depthwise"]) < 0.8
    assert min(left["dense"], left["heavy"]) > 0.95, "pointwise layers see no neighbour"


@pytest.mark.parametrize("operator", [Operator.MULTIPLY, Operator.GATE])
def test_a_multiplying_operator_scales_every_feature(operator: Operator) -> None:
    h = torch.tensor([[[2.0, -4.0, 0.0]]])
    ratio = (change_of(operator, h, torch.full_like(h, 50.0)) / h)[h != 0]
    assert ratio.tolist() == [50.0 if operator is Operator.MULTIPLY else 1.0] * 2
    assert change_of(operator, h, torch.full_like(h, -50.0))[h == 0].abs().max() == 0


def test_norm_can_take_out_the_size_of_the_state() -> None:
    blueprint, width = load_blueprint("norm"), 24
    h = torch.randn(1, 64, width, generator=torch.Generator().manual_seed(0)) * torch.logspace(-1, 1, 64)[None, :, None]
    parameters = torch.cat([torch.full((1, width), 1 / 0.35), torch.zeros(1, width)], dim=1)
    sizes = (h + blueprint.delta(parameters, h, None)).square().mean(dim=2).sqrt()
    assert sizes.std() < 0.01 * h.square().mean(dim=2).sqrt().std()


@pytest.mark.parametrize("site", [Site(24), Site(24, (2, 2))], ids=str)
def test_dropout_keeps_the_mean_and_rests_in_evaluation(site: Site) -> None:
    blueprint = load_blueprint("dropout")
    h = torch.ones(1, 4096, *site.space, site.width)
    noise = torch.rand(1, 4096, site.width, generator=torch.Generator().manual_seed(2))
    out = h + _change(blueprint, blueprint.operator, torch.zeros(1, 0), h, noise)
    assert set(np.unique(out.numpy()).round(4).tolist()) == {0.0, 2.5}
    assert out.mean() == pytest.approx(1.0, abs=0.02)
    channels = out.view(1, 4096, -1, site.width)
    assert (channels == channels[:, :, :1]).all(), "whole channels are dropped"
    assert not blueprint.delta(torch.zeros(1, 0), h, None).any()
