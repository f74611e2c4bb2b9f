"""An epoch of a plain training loop with ``simic.Grower``, against the same epoch without it.

Usage: python benchmarks/grower.py [--json] [--out FILE] [--repetitions N]
A small residual network on generated images, AdamW, one thread, 256 steps an epoch and 256 validation samples. The
epochs of both loops alternate, and each epoch is set against the plain one before it. The epochs of the Grower are
grouped: without a seed, with a seed that learns alone, and with an active seed. Times are of the processor, so that
other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import simic
from simic.contracts.actions import HEADS, OPS, TEMPOS, Head, Op
from simic.contracts.batches import Decisions, Masks, Observations
from simic.contracts.lifecycle import SeedStage
from simic.controllers.sampling import deterministic

SAMPLES, VALIDATION, BATCH = 16_384, 256, 64
YOUNG = {SeedStage.GERMINATED, SeedStage.TRAINING}


class Network(nn.Module):
    """Two residual blocks of 16 channels on images [B, 3, 16, 16]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.layer1, self.layer2 = Block(16), Block(16)
        self.fc = nn.Linear(16, 10)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.layer2(self.layer1(self.stem(images))).mean(dim=(2, 3)))
        return logits


class Block(nn.Module):
    """x + f(x) with two convolutions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        first, second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.body = nn.Sequential(first, nn.BatchNorm2d(width), nn.ReLU(), second, nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.body(x))


class Planter:
    """Waits for ``first`` epochs, then germinates one seed, which blends when its time is over, and stays."""

    name, policy_version = "planter", None

    def __init__(self, first: int) -> None:
        self.first = first

    def decide(self, observations: Observations, masks: Masks, _uniforms: Any) -> Decisions:
        row = np.zeros((1, len(HEADS)), dtype=np.int16)
        if observations.system["epoch"][0] >= self.first and masks.op[0, OPS.index(Op.GERMINATE)]:
            chosen = {Head.OP: OPS.index(Op.GERMINATE), Head.TEMPO: len(TEMPOS) - 1}
            chosen[Head.BLUEPRINT] = observations.blueprints.index("gate")
            for head, choice in chosen.items():
                row[0, HEADS.index(head)] = choice
        return deterministic(row)


def epoch_s(model: nn.Module, optimizer: torch.optim.Optimizer, data: tuple[Tensor, Tensor], grower: Any) -> float:
    """Processor time of one epoch in a fixed order."""
    start = time.process_time()
    loss = cross_entropy if grower is None else grower.loss
    model.train()
    for images, labels in zip(*(one.split(BATCH) for one in data), strict=True):
        optimizer.zero_grad()
        loss(model(images), labels).backward()
        optimizer.step()
    if grower is not None:
        grower.step()
    return time.process_time() - start


def measure(repetitions: int) -> dict[str, float]:
    """All figures."""
    torch.manual_seed(0)
    images, labels = torch.randn(SAMPLES + VALIDATION, 3, 16, 16), torch.randint(10, (SAMPLES + VALIDATION,))
    data, validation = (images[:SAMPLES], labels[:SAMPLES]), (images[SAMPLES:], labels[SAMPLES:])
    plain, grown = Network(), Network()
    optimizers = [torch.optim.AdamW(one.parameters()) for one in (plain, grown)]
    epochs = 2 * repetitions + TEMPOS[-1]
    slots = ["stem", "layer1", "layer2"]
    grower = simic.Grower(grown, optimizers[1], slots=slots, validation=validation, epochs=epochs, policy="wait")
    grower._controller = Planter(repetitions)
    plain_s: list[float] = []
    ratios: dict[str, list[float]] = {name: [] for name in ("without a seed", "seed alone", "seed active")}
    epoch_s(plain, optimizers[0], data, None)
    for _ in range(epochs):
        stage = {slot.stage for slot in grower.state.slots} - {SeedStage.DORMANT}
        kind = "without a seed" if not stage else "seed alone" if stage <= YOUNG else "seed active"
        plain_s.append(epoch_s(plain, optimizers[0], data, None))
        ratios[kind].append(epoch_s(grown, optimizers[1], data, grower) / plain_s[-1])
    medians = {f"{name} / plain": statistics.median(found) for name, found in ratios.items()}
    return {"plain epoch, s": statistics.median(plain_s), **medians}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--out", type=Path, help="also write the results here, as JSON")
    parser.add_argument("--repetitions", type=int, default=7, help="epochs without a seed, and with an active one")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = measure(arguments.repetitions)
    text = json.dumps({"name": "grower", "threads": 1, **found})
    if arguments.out is not None:
        arguments.out.write_text(text + "\n", "utf-8")
    print(text if arguments.json else "\n".join(f"{name:>24} {value:10.3f}" for name, value in found.items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
