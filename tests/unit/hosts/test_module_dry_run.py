"""What a dry run finds out about a module, and what it will not take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from support.fakes.custom_hosts import LAYERS, Maps, Toy, blobs
from torch import Tensor, nn

from simic.contracts.errors import ConfigError
from simic.contracts.state import LayerKind
from simic.hosts.custom import Layer, ModuleHost
from simic.hosts.custom.inspect import ModuleLayout, inspect_module
from simic.hosts.interfaces import Site


def host_of(module: nn.Module, shape: tuple[int, ...] = (4,), layers: tuple[Layer, ...] = LAYERS) -> ModuleHost:
    return ModuleHost(module, layers, *(blobs(part, 30, shape) for part in range(3)), batch=8)


def wire(host: ModuleHost) -> ModuleLayout:
    return inspect_module(host.module, host, 7, "family 'f', host 7")


def test_vectors_and_a_connection_around_a_block() -> None:
    topology = wire(host_of(Toy())).topology
    assert topology.kinds == (LayerKind.STEM, LayerKind.BLOCK, LayerKind.HEAD)
    assert topology.widths == (6, 6, 3)
    assert topology.connects == ((0, 1), (0, 2), (1, 2))
    assert topology.sites == (Site(6), Site(6))
    assert topology.monitors == ((0, 0), (1, 1))
    assert topology.classes == 3


def test_maps_are_presented_with_channels_last() -> None:
    topology = wire(host_of(Maps(), (1, 4, 4))).topology
    assert topology.connects == ((0, 1), (1, 2))
    assert topology.sites == (Site(4, (4, 4)), Site(6, (2, 2)))


class Sequence(nn.Module):
    """[B, 5, 3] through a token-wise layer and a Conv1d, whose features come first."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block, self.head = nn.Linear(3, 4), nn.Conv1d(4, 7, 3), nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.block(self.stem(x).transpose(1, 2))
        logits: Tensor = self.head(y.mean(dim=2))
        return logits


def test_sequences_and_an_axis_of_ones_own() -> None:
    layers = (LAYERS[0], LAYERS[1]._replace(feature_axis=1), LAYERS[2])
    assert wire(host_of(Sequence(), (5, 3), layers)).topology.sites == (Site(4, (5,)), Site(7, (3,)))
    layers = (LAYERS[0], LAYERS[1]._replace(feature_axis=0), LAYERS[2])
    with pytest.raises(ConfigError, match=r"layer 'block' has feature_axis 0; its output \(8, 7, 3\) has axes 1 to 2"):
        wire(host_of(Sequence(), (5, 3), layers))


def test_the_module_and_the_world_stay_as_they_were() -> None:
    module = Toy()
    module.drop.eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    torch.manual_seed(3)
    state = torch.random.get_rng_state()
    wire(host_of(module))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert not module.drop.training
    assert module.training
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not any(part._forward_hooks for part in module.modules())


class Shifty(Toy):
    """Does what it should not, as ``vice`` says."""

    def __init__(self, vice: str) -> None:
        super().__init__()
        self.vice, self.calls = vice, 0

    def forward(self, inputs: Tensor) -> Any:
        self.calls += 1
        x = self.stem(inputs).relu()
        if self.vice == "twice":
            x = x + self.block(x)
        if self.vice == "skips":
            return self.head(x)
        logits = self.head(x + self.block(x))
        return {
            "tuple": (logits,),
            "one": logits[:, :1],
            "nan": logits * torch.nan,
            "double": logits.double(),
            "alternates": logits[:, : 3 - self.calls % 2],
            "trains otherwise": logits[:, :2] if self.training else logits,
        }.get(self.vice, logits)


@pytest.mark.parametrize(
    ("vice", "message"),
    [
        ("twice", r"layers must run once each in the order given.*\['stem', 'block', 'block', 'head'\]"),
        ("skips", r"layers must run once each.*found \['stem', 'head'\]"),
        ("tuple", "float32 logits .* found tuple"),
        ("one", r"float32 logits \[8, C >= 2\], found torch.float32 \(8, 1\)"),
        ("nan", "not finite before any training"),
        ("double", "float32 logits .* found torch.float64"),
        ("alternates", r"expected logits \(7, 2\), found \(7, 3\)"),
        ("trains otherwise", r"expected logits \(8, 3\), found \(8, 2\)"),
    ],
)
def test_a_module_that_misbehaves_is_named(vice: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"family 'f', host 7.*{message}"):
        wire(host_of(Shifty(vice)))


class Layered(Toy):
    """Its block gives what it is told to."""

    def __init__(self, give: Any) -> None:
        super().__init__()
        self.block, self.calls = nn.Identity(), 0
        self.block.register_forward_hook(lambda _module, _inputs, x: self.shape(give, x))

    def shape(self, give: Any, x: Tensor) -> Any:
        self.calls += 1
        return give(x, self.calls)

    def forward(self, inputs: Tensor) -> Tensor:
        x = self.stem(inputs)
        self.block(x)
        logits: Tensor = self.head(x)
        return logits


@pytest.mark.parametrize(
    ("give", "message"),
    [
        (lambda x, _: (x, x), "layer 'block' must give a floating-point tensor .* found tuple"),
        (lambda x, _: x.argmax(dim=1), r"must give a floating-point tensor .* found torch.int64 \(8,\)"),
        (lambda x, call: x[:, call:], r"'block' changes its shape between passes: expected \(7, 5\), found \(7, 4\)"),
        (lambda x, _: x.double(), "slots need float32, layer 'block' gives torch.float64"),
    ],
)
def test_a_layer_that_gives_something_else_is_named(give: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        wire(host_of(Layered(give)))


def test_layers_out_of_order_and_modules_that_fail() -> None:
    with pytest.raises(ConfigError, match=r"in the order given, \['block', 'stem', 'head'\]; found \['stem', 'block'"):
        wire(host_of(Toy(), layers=(LAYERS[1], LAYERS[0], LAYERS[2])))
    with pytest.raises(ConfigError, match="fails on 8 of its samples in evaluation mode: mat1 and mat2"):
        wire(host_of(Toy(), (5,)))
    host = host_of(Toy())
    with pytest.raises(
        ConfigError, match=r"fails on 1 of its samples in training mode: .*more than 1 value per channel"
    ):
        wire(replace(host, batch=1))
