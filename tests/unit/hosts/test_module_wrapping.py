"""Networks that cannot grow as they are: refused with how to wrap them, and grown when wrapped so."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from support.fakes.custom_hosts import blobs
from torch import Tensor, nn

import simic
from simic.contracts.errors import ConfigError, DatasetError
from simic.contracts.state import LayerKind
from simic.hosts.custom import Layer, ModuleHost, Samples
from simic.hosts.custom.checks import check_samples
from simic.hosts.custom.inspect import inspect_module

AROUND = "found tuple; name a module around it that returns one tensor"
ONE_INPUT = "a network with several inputs needs a wrapper that takes them out of one tensor"


class Net(nn.Module):
    """A layer between the samples [B, 5, 4] and a head."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layer(x).mean(dim=1))
        return logits


class Last(nn.Module):
    """The outputs of an LSTM without its state."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(4, 6, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.inner(x)[0]
        return outputs


class Attend(nn.Module):
    """Self-attention without its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.inner(x, x, x)[0]
        return mixed


class Twice(nn.Module):
    """One linear map, used twice, and a place behind the second use."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.behind = nn.Linear(4, 4), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.behind(self.inner(self.inner(x).relu()).relu())
        return mixed


class Two(nn.Module):
    """A network with two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layer(torch.cat([x, y], dim=-1)).mean(dim=1))
        return logits


class FromOne(nn.Module):
    """Takes the two inputs out of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Two()

    def forward(self, both: Tensor) -> Tensor:
        logits: Tensor = self.inner(both[..., :1], both[..., 1:])
        return logits


class Case(NamedTuple):
    """A network that cannot grow in a slot, why, and the same one wrapped with its slot and head."""

    network: nn.Module
    slot: str
    reason: str
    wrapped: nn.Module
    good: str
    head: str = "head"


CASES = {
    "LSTM": Case(Net(Last(), 6), "layer.inner", AROUND, Net(Last(), 6), "layer"),
    "attention": Case(Net(Attend(), 4), "layer.inner", AROUND, Net(Attend(), 4), "layer"),
    "a layer used twice": Case(
        Net(Twice(), 4), "layer.inner", "a module around all its uses, or a torch.nn.Identity behind one of them",
        Net(Twice(), 4), "layer.behind",
    ),
    "two inputs": Case(Two(), "layer", ONE_INPUT, FromOne(), "inner.layer", "inner.head"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_grow_is_refused_with_how_to_wrap_it(name: str) -> None:
    """By a Grower, and in a family."""
    network, slot, reason, wrapped, good, head = CASES[name]
    parts = [blobs(part, 30, (5, 4)) for part in range(3)]

    def grow(model: nn.Module, slot: str) -> simic.Grower:
        optimizer = torch.optim.AdamW(model.parameters())
        return simic.Grower(model, optimizer, slots=[slot], validation=parts[1], epochs=8, policy="wait")

    def inspect(model: nn.Module, slot: str, head: str) -> None:
        layers = (Layer(slot, LayerKind.STEM, has_slot=True), Layer(head, LayerKind.HEAD))
        inspect_module(model, ModuleHost(model, layers, *parts, batch=8), 7, "family 'f', host 7")

    with pytest.raises(ConfigError, match=reason):
        grow(network, slot)
    with pytest.raises(ConfigError, match=reason):
        inspect(network, slot, "head")
    inspect(wrapped, good, head)
    assert len(grow(wrapped, good).state.slots) == 1


def test_samples_of_several_tensors_and_outputs_that_hold_logits_are_refused_with_what_to_do() -> None:
    inputs, labels = blobs(0, 30, (5, 4))
    both: tuple[Tensor, Tensor] = (inputs, inputs)
    with pytest.raises(DatasetError, match=ONE_INPUT):
        check_samples(Samples(both, labels), "train")  # type: ignore[arg-type]
    model = Net(Last(), 6)
    model.register_forward_hook(lambda _model, _inputs, logits: {"logits": logits})
    host = ModuleHost(model, (Layer("layer", has_slot=True), Layer("head")), *[Samples(inputs, labels)] * 3)
    with pytest.raises(ConfigError, match="found dict; logits= takes them out of an output"):
        inspect_module(model, host, 7, "family 'f', host 7")
