"""A small CNN of one's own on scikit-learn's 8x8 digits: plain PyTorch, and what Simic needs to know to grow it."""

from __future__ import annotations

from functools import cache

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from simic.contracts.state import LayerKind
from simic.hosts.custom import Layer, ModuleFamily, ModuleHost, Samples
from simic.hosts.host_sets import STANDARD
from simic.hosts.interfaces import Blueprint, Site

TRAIN, VALIDATION, TEST = 200, 400, 400
"""Images of each part."""


class DigitNet(nn.Module):
    """Two convolutions, a mean over positions, a linear classifier: too small for its task."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU())
        self.down = nn.Sequential(nn.Conv2d(6, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Linear(8 * 4, 10)

    def forward(self, images: Tensor) -> Tensor:
        """[B, 1, 8, 8] -> [B, 10]"""
        x = nn.functional.avg_pool2d(self.down(self.stem(images)), 2)
        logits: Tensor = self.head(x.flatten(1))
        return logits


class OwnCnn(ModuleFamily):
    """Every key is a network with weights and training images of its own; validation and test images are fixed."""

    blueprints = (*STANDARD, "rescale")
    seeds_max = 2

    def host(self, key: int) -> ModuleHost:
        """Return the host of a key; Simic seeds torch with the key, so ``DigitNet`` may draw its weights as usual."""
        images, labels = digits()
        rest = len(labels) - VALIDATION - TEST
        mine = torch.randperm(rest, generator=torch.Generator().manual_seed(key))[:TRAIN] + VALIDATION + TEST
        return ModuleHost(
            module=DigitNet(),
            layers=(
                Layer("stem", LayerKind.STEM, has_slot=True),
                Layer("down", LayerKind.BLOCK, has_slot=True),
                Layer("head", LayerKind.HEAD),
            ),
            train=Samples(images[mine], labels[mine]),
            validation=Samples(images[:VALIDATION], labels[:VALIDATION]),
            test=Samples(images[VALIDATION : VALIDATION + TEST], labels[VALIDATION : VALIDATION + TEST]),
            batch=25,
            learning_rate=0.02,
        )


class Rescale(Blueprint):
    """A blueprint of one's own: every feature gets a scale and a shift; delta = w h + b is 0 at birth."""

    def parameters(self, site: Site, /) -> int:
        return 2 * site.width

    def birth(self, normals: Tensor, _site: Site, /) -> Tensor:
        """Return initial parameters: all zero."""
        return torch.zeros_like(normals)

    def delta(self, parameters: Tensor, h: Tensor, _noise: Tensor | None, /) -> Tensor:
        scale, shift = (values.view(len(h), *[1] * (h.dim() - 2), -1) for values in parameters.chunk(2, dim=1))
        return scale * h + shift


@cache
def digits() -> tuple[Tensor, Tensor]:
    """Images [n, 1, 8, 8], each with an exposure of its own, and labels [n]; always in the same shuffled order."""
    images, labels = load_digits(return_X_y=True)
    chance = torch.Generator().manual_seed(0)
    order = torch.randperm(len(labels), generator=chance)
    exposure = torch.randn(len(labels), 1, 1, 1, generator=chance).exp()
    pixels = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 8.0
    return pixels[order] * exposure, torch.tensor(labels, dtype=torch.int64)[order]


FAMILY = OwnCnn()
RESCALE = Rescale()
