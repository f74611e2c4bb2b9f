"""Two networks that are too narrow for scikit-learn's 8x8 digits: every layer has 3 or 4 features."""

from __future__ import annotations

from functools import cache

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from simic.contracts.state import LayerKind
from simic.hosts.custom import Layer, ModuleFamily, ModuleHost, Samples
from simic.hosts.host_sets import STANDARD

TRAIN, VALIDATION, TEST = 300, 400, 400
"""Images of each part."""
LAYERS = (
    Layer("stem", LayerKind.STEM, has_slot=True),
    Layer("block", LayerKind.BLOCK, has_slot=True),
    Layer("head", LayerKind.HEAD),
)


class NarrowCnn(nn.Module):
    """Two convolutions, of 3 and 4 channels, a mean over positions, and a linear classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU())
        self.block = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.ReLU())
        self.head = nn.Linear(4, 10)

    def forward(self, images: Tensor) -> Tensor:
        """[B, 1, 8, 8] -> [B, 10]"""
        logits: Tensor = self.head(self.block(self.stem(images)).mean(dim=(2, 3)))
        return logits


class NarrowMlp(nn.Module):
    """Two hidden layers of 4 units."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.ReLU())
        self.block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.head = nn.Linear(4, 10)

    def forward(self, images: Tensor) -> Tensor:
        """[B, 1, 8, 8] -> [B, 10]"""
        logits: Tensor = self.head(self.block(self.stem(images)))
        return logits


class Narrow(ModuleFamily):
    """Every key is a network with weights and training images of its own; validation and test images are fixed."""

    blueprints = (*STANDARD, "widen")

    def __init__(self, network: type[nn.Module], learning_rate: float) -> None:
        self.network, self.learning_rate = network, learning_rate

    def host(self, key: int) -> ModuleHost:
        """Return the host of a key; Simic seeds torch with the key, so the network may draw its weights as usual."""
        images, labels = digits()
        rest = len(labels) - VALIDATION - TEST
        mine = torch.randperm(rest, generator=torch.Generator().manual_seed(key))[:TRAIN] + VALIDATION + TEST
        parts = (mine, slice(VALIDATION), slice(VALIDATION, VALIDATION + TEST))
        train, validation, test = (Samples(images[part], labels[part]) for part in parts)
        return ModuleHost(self.network(), LAYERS, train, validation, test, batch=25, learning_rate=self.learning_rate)


@cache
def digits() -> tuple[Tensor, Tensor]:
    """Images [n, 1, 8, 8] and labels [n], always in the same shuffled order."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    pixels = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 8.0
    return pixels[order], torch.tensor(labels, dtype=torch.int64)[order]


CNN = Narrow(NarrowCnn, learning_rate=0.1)
MLP = Narrow(NarrowMlp, learning_rate=0.02)
