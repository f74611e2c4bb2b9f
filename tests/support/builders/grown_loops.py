"""Training loops of one's own, with and without a Grower."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

import simic
from support.fakes.custom_hosts import blobs

__all__ = ["ARCHITECTURES", "OPTIMIZERS", "Loop", "Recurrent", "make_loop", "train", "train_epoch"]


class Residual(nn.Module):
    """A residual network with batch normalisation on maps [B, 1, 4, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.layer1 = Block(4)
        self.layer2 = Block(4)
        self.fc = nn.Linear(4, 3)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.layer2(self.layer1(self.stem(images))).mean(dim=(2, 3)))
        return logits


class Block(nn.Module):
    """x + relu(bn(conv(x))), in place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.act(self.norm(self.conv(x)))


class Transformer(nn.Module):
    """A pre-norm transformer with dropout on sequences [B, 5, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(x.mean(dim=1))
        return logits


class Recurrent(nn.Module):
    """A GRU on sequences [B, 5, 4]; its tuple is taken apart behind a wrapper."""

    class Outputs(nn.Module):
        """The outputs of a GRU without its state."""

        def __init__(self) -> None:
            super().__init__()
            self.gru = nn.GRU(4, 6, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = self.gru(x)[0]
            return outputs

    def __init__(self) -> None:
        super().__init__()
        self.reader = Recurrent.Outputs()
        self.mixer = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.mixer(self.reader(x)[:, -1]))
        return logits


class Architecture(NamedTuple):
    """A network, the slots in it, and the shape of a sample."""

    network: Callable[[], nn.Module]
    slots: tuple[str, ...]
    shape: tuple[int, ...]


ARCHITECTURES = {
    "residual": Architecture(Residual, ("layer2", "layer1"), (1, 4, 4)),
    "transformer": Architecture(Transformer, ("layers.0", "layers.1"), (5, 4)),
    "recurrent": Architecture(Recurrent, ("reader", "mixer"), (5, 4)),
}
OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.003),
}


class Loop(NamedTuple):
    """What a training loop holds."""

    model: nn.Module
    optimizer: Optimizer
    grower: simic.Grower | None
    data: tuple[Tensor, Tensor]


def make_loop(architecture: str, optimizer: str = "sgd", *, policy: Any = "random", **settings: Any) -> Loop:
    """A fresh loop from fixed seeds; without a Grower if ``policy`` is None."""
    network, slots, shape = ARCHITECTURES[architecture]
    torch.manual_seed(0)
    model = network()
    chosen = OPTIMIZERS[optimizer](model.parameters())
    defaults = {"slots": slots, "validation": tuple(blobs(1, 60, shape)), "epochs": 12}
    grower = None if policy is None else simic.Grower(model, chosen, policy=policy, **{**defaults, **settings})
    return Loop(model, chosen, grower, tuple(blobs(0, 44, shape)))


def train_epoch(loop: Loop, batch: int = 11) -> simic.Growth | None:
    """One epoch in an order drawn from torch's generator."""
    inputs, labels = loop.data
    loop.model.train()
    for rows in torch.randperm(len(labels)).split(batch):
        loop.optimizer.zero_grad()
        loss = cross_entropy if loop.grower is None else loop.grower.loss
        loss(loop.model(inputs[rows]), labels[rows]).backward()
        loop.optimizer.step()
    return None if loop.grower is None else loop.grower.step()


def train(loop: Loop, epochs: int = 12) -> list[simic.Growth | None]:
    """Several epochs."""
    return [train_epoch(loop) for _ in range(epochs)]
