"""A small classifier in a loop of its own, with a controller that lets one seed begin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

import simic
from simic.contracts.actions import OPS, Op
from simic.contracts.batches import Decisions, Masks, Observations
from simic.controllers.sampling import deterministic
from simic.hosts.custom.attached import SEED_PREFIX
from simic.hosts.plugins import blueprint_names
from support.builders.ensembles import action
from support.fakes.custom_hosts import blobs

__all__ = ["INPUTS", "LABELS", "VALIDATION", "Grow", "Net", "batches", "grow", "seed_of", "train", "train_epoch"]

INPUTS, LABELS = blobs(0, 48, (4,))
VALIDATION = tuple(blobs(1, 60, (4,)))
SLOT = "body"


class Grow:
    """Lets a seed begin in epoch 1, and advances or keeps it if told so."""

    name = "grow"
    policy_version: str | None = None

    def __init__(
        self, blueprint: str = "dense", *, advances: bool = False, keeps: bool = False, first: int = 1
    ) -> None:
        self.blueprint, self.epoch, self.first = blueprint_names().index(blueprint), -1, first
        further = ((keeps, Op.FOSSILIZE), (advances, Op.ADVANCE))
        self.wanted = *(op for does_so, op in further if does_so), Op.GERMINATE

    def decide(self, _observations: Observations, masks: Masks, _uniforms: Any) -> Decisions:
        self.epoch += 1
        legal = [op for op in self.wanted if masks.slot[0][OPS.index(op)] and self.epoch >= self.first]
        return deterministic(action(legal[0] if legal else Op.WAIT, 0, self.blueprint)[None])


class Net(nn.Module):
    """A classifier of [B, 4] with 3 classes, whose body may be computed again in the backward pass."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.stem, self.body, self.head = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 3)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        if self.training and self.reentrant is not None:
            h = checkpoint(self.body, h, use_reentrant=self.reentrant)
        else:
            h = self.body(h)
        logits: Tensor = self.head(h)
        return logits


def grow(model: nn.Module, optimizer: Optimizer | None = None, **settings: Any) -> tuple[simic.Grower, Optimizer]:
    chosen = torch.optim.SGD(model.parameters(), lr=0.05) if optimizer is None else optimizer
    defaults: dict[str, Any] = {"slots": [SLOT], "validation": VALIDATION, "epochs": 12, "policy": "wait"}
    return simic.Grower(model, chosen, **{**defaults, **settings}), chosen


def batches(inputs: Tensor = INPUTS, labels: Tensor = LABELS) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(inputs.split(12), labels.split(12), strict=True)


def train_epoch(grower: simic.Grower, optimizer: Optimizer, given: Any = None, *, scaler: Any = None) -> None:
    """Train an epoch without its end."""
    grower.model.train()
    for inputs, labels in batches() if given is None else given:
        optimizer.zero_grad()
        loss = grower.loss(grower.model(inputs), labels)
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()


def train(grower: simic.Grower, optimizer: Optimizer, epochs: int, **how: Any) -> None:
    for _ in range(epochs):
        train_epoch(grower, optimizer, **how)
        grower.step()


def seed_of(model: nn.Module) -> Tensor:
    seed: Tensor = dict(model.named_parameters())[f"{SEED_PREFIX}0"]
    return seed.detach().clone()
