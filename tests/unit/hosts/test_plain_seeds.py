"""Kept seeds as plain modules: the same outputs and gradients as while they grew, for any batch size."""

from __future__ import annotations

import copy
import subprocess
import sys
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, linear

from simic.contracts.errors import ConfigError
from simic.hosts.custom.forward import ActiveSeed, LayerHook, grow_output
from simic.hosts.custom.plain import append_seed, check_replaceable, plain_seed
from simic.hosts.interfaces import Blueprint, Site
from simic.hosts.plugins import blueprint_names, load_blueprint

PLACES = {"vector": (1, (8,)), "map": (1, (8, 4, 4)), "sequence": (2, (5, 8))}
"""Axis of the features and shape of one sample's output; 8 features."""


def place(name: str) -> LayerHook:
    axis, shape = PLACES[name]
    space = shape[: axis - 1] + shape[axis:]
    return LayerHook("layer", axis, shape, 0, Site(shape[axis - 1], space))


CASES = [
    (name, where)
    for name in blueprint_names()
    for where in PLACES
    if not load_blueprint(name).is_widening and load_blueprint(name).suits(place(where).site)
]


@pytest.mark.parametrize(("name", "where"), CASES)
def test_a_plain_seed_computes_and_learns_as_the_grown_one(name: str, where: str) -> None:
    blueprint, hook = load_blueprint(name), place(where)
    chance = torch.Generator().manual_seed(prod(hook.shape))
    count = blueprint.parameters(hook.site)
    values = 0.3 * torch.randn(1, count, generator=chance)
    plain = plain_seed(blueprint, nn.Parameter(values.clone()), 0.7, hook)
    grown = values.clone().requires_grad_()
    for samples in (1, 4, 9):
        x = torch.randn(samples, *hook.shape, generator=chance)
        # As a layer that transposes its result gives it: other strides, which views do not fit.
        for layout in (x, *(x.transpose(a, -1).contiguous().transpose(a, -1) for a in range(x.dim() - 1))):
            want, found = grow_output(hook, ActiveSeed(blueprint, grown, 0.7), layout), plain(layout)
            assert torch.equal(found, want)
            if count:
                (theirs,) = torch.autograd.grad(want.square().sum(), grown)
                (mine,) = torch.autograd.grad(found.square().sum(), plain.weight)
                torch.testing.assert_close(mine, theirs)
    assert "simic" not in plain.code


@pytest.mark.parametrize(("name", "where"), CASES)
def test_a_plain_seed_keeps_to_the_type_and_device_of_its_parameters(name: str, where: str) -> None:
    """Under autocast it computes in float32, where squares of large states do not overflow; other types are cast."""
    blueprint, hook = load_blueprint(name), place(where)
    chance = torch.Generator().manual_seed(0)
    values = 0.3 * torch.randn(1, blueprint.parameters(hook.site), generator=chance)
    plain = plain_seed(blueprint, nn.Parameter(values), 0.7, hook)
    x = 400.0 * torch.randn(3, *hook.shape, generator=chance)
    exact = plain(x)
    for dtype in (torch.bfloat16, torch.float16):
        small = x.to(dtype)
        with torch.autocast("cpu", dtype):
            assert torch.equal(plain(x), exact)
            given = plain(small)
        assert given.dtype == dtype
        assert torch.equal(given, plain(small.float()).to(dtype))
        assert bool(given.isfinite().all())
        assert copy.deepcopy(plain).to(dtype)(small / 400).dtype == dtype
    assert plain.to("meta")(x.to("meta")).shape == x.shape


class Other(Blueprint):
    """Products and a convolution of PyTorch, as another package may use them."""

    def parameters(self, site: Site, /) -> int:
        return 4 * site.width**2 + site.width

    def birth(self, normals: Tensor, _site: Site, /) -> Tensor:
        return normals

    def delta(self, parameters: Tensor, h: Tensor, _noise: Tensor | None, /) -> Tensor:
        width = h.shape[-1]
        square, bias = parameters[0, : 4 * width**2].view(4, width, width), parameters[0, 4 * width**2 :]
        x = linear(h[0] @ square[0], square[1], bias)  # without a bias and with one
        x = conv1d(x.transpose(1, 2), square[2].unsqueeze(2)).transpose(1, 2)
        mixed: Tensor = torch.baddbmm(x, x, square[3].expand(x.shape[0], -1, -1)).unsqueeze(0)
        return mixed


def test_a_blueprint_of_another_package_computes_as_it_grew_but_for_a_convolution() -> None:
    hook = place("sequence")
    values = nn.Parameter(
        0.3 * torch.randn(1, Other().parameters(hook.site), generator=torch.Generator().manual_seed(0))
    )
    plain = plain_seed(Other(), values, 0.7, hook)
    x = torch.randn(3, *hook.shape, generator=torch.Generator().manual_seed(1))
    exact = plain(x)
    with torch.autocast("cpu", torch.bfloat16):
        grown, kept = grow_output(hook, ActiveSeed(Other(), values, 0.7), x), plain(x)
    assert torch.equal(grown, exact)
    torch.testing.assert_close(kept, exact, rtol=0.05, atol=0.1)
    kept.sum().backward()
    assert values.grad is not None


def test_a_seed_is_traced_and_compared_outside_of_the_autocast_of_finalize() -> None:
    hook, blueprint = place("vector"), load_blueprint("dense")
    values = nn.Parameter(torch.randn(1, blueprint.parameters(hook.site), generator=torch.Generator().manual_seed(0)))
    outside = plain_seed(blueprint, values, 0.7, hook)
    with torch.autocast("cpu", torch.bfloat16):
        assert plain_seed(blueprint, values, 0.7, hook).code == outside.code


LOAD = """
import sys, torch
for network, x, want in torch.load(sys.argv[1], weights_only=False):
    found = network(x)
    network.train()
    found.square().sum().backward()
    assert torch.equal(found, want) and all(one.grad is not None for one in network.parameters())
assert not any(name.partition(".")[0] == "simic" for name in sys.modules)
"""


def test_a_saved_network_is_loaded_where_nothing_was_traced(tmp_path: Path) -> None:
    """Another process with torch alone: what a trace leaves behind in this one would hide what the file lacks."""
    saved = []
    for name, where in CASES:
        blueprint, hook = load_blueprint(name), place(where)
        values = 0.3 * torch.randn(1, blueprint.parameters(hook.site), generator=torch.Generator().manual_seed(2))
        network = nn.Sequential(nn.Identity(), plain_seed(blueprint, nn.Parameter(values), 0.7, hook))
        x = torch.randn(3, *hook.shape, generator=torch.Generator().manual_seed(1), requires_grad=True)
        saved.append((network, x, network(x).detach()))
    torch.save(saved, tmp_path / "networks.pt")
    command = [sys.executable, "-c", LOAD, str(tmp_path / "networks.pt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "axis", "shape"), [("heavy", 1, (2048,)), ("conv3x3", 1, (64, 32, 32))], ids=["wide", "map"]
)
def test_a_seed_of_many_parameters_becomes_plain_in_little_memory(
    name: str, axis: int, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    blueprint, make, largest = load_blueprint(name), torch.zeros, 0

    def zeros(*size: int, **named: Any) -> Tensor:
        nonlocal largest
        largest = max(largest, prod(size))
        if prod(size) > 2**26:
            raise RuntimeError(f"can't allocate {4 * prod(size)} bytes")
        return make(*size, **named)

    hook = LayerHook("layer", axis, shape, 0, Site(shape[0], shape[1:]))
    parameters = torch.full((1, blueprint.parameters(hook.site)), 1e-3)
    monkeypatch.setattr(torch, "zeros", zeros)
    plain = plain_seed(blueprint, nn.Parameter(parameters), 0.7, hook)
    assert 0 < largest <= 32 * prod(shape)
    x = torch.randn(2, *shape, generator=torch.Generator().manual_seed(1))
    assert torch.equal(plain(x), grow_output(hook, ActiveSeed(blueprint, parameters, 0.7), x))


def test_a_seed_for_which_memory_is_too_small_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_size: int, **_named: object) -> Tensor:
        raise RuntimeError("can't allocate memory")

    blueprint, hook = load_blueprint("heavy"), place("vector")
    parameters = nn.Parameter(torch.ones(1, blueprint.parameters(hook.site)))
    monkeypatch.setattr(torch, "zeros", fail)
    with pytest.raises(ConfigError, match=r"behind 'layer'.*can't allocate memory"):
        plain_seed(blueprint, parameters, 0.7, hook)


class Fixed(Blueprint):
    """Computes with the number of samples of its first call, or with a number that it reads from a tensor."""

    def __init__(self, *, reads: bool) -> None:
        self.reads = reads

    def parameters(self, site: Site, /) -> int:
        return site.width

    def birth(self, normals: Tensor, _site: Site, /) -> Tensor:
        return normals

    def delta(self, parameters: Tensor, h: Tensor, _noise: Tensor | None, /) -> Tensor:
        size = float(h.abs().max()) if self.reads else int(h.shape[1])
        return parameters.view(1, 1, -1).expand_as(h) * size


@pytest.mark.parametrize("reads", [False, True])
def test_a_blueprint_of_which_no_graph_exists_is_named(*, reads: bool) -> None:
    hook = place("vector")
    with pytest.raises(ConfigError, match=r"behind 'layer'.*\(Fixed\) compute with tensors alone"):
        plain_seed(Fixed(reads=reads), nn.Parameter(torch.ones(1, 8)), 0.7, hook)


def test_a_seed_goes_behind_a_layer_deep_in_a_network() -> None:
    network = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Linear(2, 2))
    first = network[0]
    append_seed(network, "0.1", nn.Identity())
    assert network[0] is first
    assert [type(part) for part in network[0][1]] == [nn.ReLU, nn.Identity]


class Encoder(nn.Module):
    """A layer of a transformer, which torch computes in one fused pass in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layer(x)
        return output


@pytest.mark.parametrize(
    ("part", "reason"), [("linear1", "no attribute 'weight'"), ("dropout", "the model does not call"), (None, None)]
)
def test_a_part_that_a_fused_pass_leaves_out_is_refused(part: str | None, reason: str | None) -> None:
    network, inputs = Encoder(), torch.randn(4, 5, 8)
    if part is None:
        check_replaceable(network, ["layer"], inputs, "here")
        return
    with pytest.raises(ConfigError, match=f"here: .*{reason}"):
        check_replaceable(network, [f"layer.{part}"], inputs, "here")
