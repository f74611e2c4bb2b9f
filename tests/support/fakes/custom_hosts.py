"""Small modules to grow, and a way to install families for the length of a test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from simic.contracts.settings.run import WorldConfig
from simic.contracts.state import LayerKind
from simic.hosts import plugins as catalogue
from simic.hosts import world_identity
from simic.hosts.custom import Layer, ModuleFamily, ModuleHost, Samples
from simic.hosts.custom.host_batch import CustomHosts
from simic.hosts.ensemble import Ensemble
from simic.hosts.host_sets import identify
from simic.runtime import plugin_folder

__all__ = ["Maps", "Toy", "ToyFamily", "blobs", "grown_modules", "install", "modules_of"]

CLASSES = 3


@dataclass(frozen=True)
class Plug:
    """What an entry point is to the catalogue."""

    thing: Any
    value: str = "test"
    module: str = "support.fakes.custom_hosts"
    dist: None = None

    def load(self) -> Any:
        return self.thing


def install(
    patch: pytest.MonkeyPatch, families: Mapping[str, Any], blueprints: Mapping[str, Any] | None = None
) -> None:
    """Make things known by name until the patch is undone."""
    groups = {"simic.host_families": families, "simic.blueprints": blueprints or {}}
    plugs = {group: {name: Plug(thing) for name, thing in things.items()} for group, things in groups.items()}
    patch.setattr(plugin_folder, "_installed", lambda group: plugs.get(group, {}))
    for module, cached in ((catalogue, "_names"), (catalogue, "_load"), (world_identity, "world_digest")):
        # Without its cache, so that nothing learned here outlives the patch.
        original = getattr(module, cached)
        patch.setattr(module, cached, getattr(original, "__wrapped__", original))


class Toy(nn.Module):
    """A vector network with everything that could leak: dropout, batch statistics, in-place work."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.stem = nn.Linear(4, width)
        self.block = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(inplace=True))
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        x = self.stem(inputs).relu_()
        logits: Tensor = self.head(self.drop(x + self.block(x)))
        return logits


class Maps(nn.Module):
    """The same on images [B, 1, 4, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.block = nn.Conv2d(4, 6, 3, padding=1, stride=2)
        self.head = nn.Linear(24, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        x = self.block(self.stem(inputs).relu()).relu()
        logits: Tensor = self.head(x.view(len(x), -1))
        return logits


LAYERS = (
    Layer("stem", LayerKind.STEM, has_slot=True),
    Layer("block", LayerKind.BLOCK, has_slot=True, hidden_width=6),
    Layer("head", LayerKind.HEAD),
)


def blobs(key: int, count: int, shape: tuple[int, ...] = (4,)) -> Samples:
    """Three overlapping clouds."""
    chance = torch.Generator().manual_seed(key)
    labels = torch.arange(count) % CLASSES
    centres = torch.randn(CLASSES, *shape, generator=torch.Generator().manual_seed(0))
    return Samples(centres[labels] + 0.8 * torch.randn(count, *shape, generator=chance), labels)


class ToyFamily(ModuleFamily):
    """Hosts of a test; ``changes`` replace fields of every one."""

    seeds_max = 2

    def __init__(self, module: type[nn.Module] = Toy, shape: tuple[int, ...] = (4,), **changes: Any) -> None:
        self.module, self.shape, self.changes = module, shape, changes

    def host(self, key: int) -> ModuleHost:
        parts = (blobs(10 * key + part, count, self.shape) for part, count in enumerate((45, 60, 40)))
        return replace(ModuleHost(self.module(), LAYERS, *parts, batch=10), **self.changes)


def grown_modules(keys: list[int], horizon: int = 8, name: str = "toy") -> Ensemble:
    """Hosts of an installed family."""
    return Ensemble(identify(name, keys), WorldConfig(set=name, horizon=horizon))


def modules_of(grown: Ensemble) -> CustomHosts:
    """The modules of an ensemble."""
    hosts = grown._hosts
    assert isinstance(hosts, CustomHosts)
    return hosts
