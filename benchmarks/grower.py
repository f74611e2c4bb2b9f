"""An epoch of a plain training loop with ``simic.Grower``, against the same epoch without it.

Usage: python benchmarks/grower.py [--json] [--out FILE] [--repetitions N]
A small residual network on generated images, AdamW, one thread, 256 steps an epoch and 256 validation samples. The
two loops take their steps in turn, so that both meet the same noise of a busy machine, and each epoch of the Grower,
its measurements included, is set against the plain one beside it. The epochs are grouped: without a seed, with a seed
that learns alone, and with an active seed. Then the same for a compiled network with ``torch.compile``, in epochs of 32
steps; the first epoch of each kind holds what compiling takes. Times are of the processor, so that other work on the
machine does not count.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from common.command_line import make_parser, show
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import simic
from simic.api.grower_policy import Decider
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


class Run:
    """A training loop, with a Grower or without, and the processor time that its present epoch took so far."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, grower: Any = None) -> None:
        self.model, self.optimizer, self.grower = model, optimizer, grower
        self.loss = cross_entropy if grower is None else grower.loss
        self.spent_s = 0.0

    def take_step(self, images: Tensor, labels: Tensor) -> None:
        """Train on one batch."""
        start = time.process_time()
        self.optimizer.zero_grad()
        self.loss(self.model(images), labels).backward()
        self.optimizer.step()
        self.spent_s += time.process_time() - start

    def end_epoch(self) -> float:
        """Let the Grower measure and decide; return the time of the epoch."""
        start = time.process_time()
        if self.grower is not None:
            self.grower.step()
        spent_s, self.spent_s = self.spent_s + time.process_time() - start, 0.0
        return spent_s


def epoch_s(runs: Sequence[Run], data: tuple[Tensor, Tensor]) -> list[float]:
    """Processor times of one epoch each, in a fixed order of samples; the runs take their steps in turn."""
    for run in runs:
        run.model.train()
    for step, (images, labels) in enumerate(zip(*(one.split(BATCH) for one in data), strict=True)):
        for run in runs if step % 2 else reversed(runs):
            run.take_step(images, labels)
    return [run.end_epoch() for run in runs]


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
    grower._decider = Decider(Planter(repetitions), "warn")
    plain_s: list[float] = []
    ratios: dict[str, list[float]] = {name: [] for name in ("without a seed", "seed alone", "seed active")}
    runs = [Run(plain, optimizers[0]), Run(grown, optimizers[1], grower)]
    epoch_s(runs[:1], data)
    for _ in range(epochs):
        stage = {slot.stage for slot in grower.state.slots} - {SeedStage.DORMANT}
        kind = "without a seed" if not stage else "seed alone" if stage <= YOUNG else "seed active"
        without_s, with_s = epoch_s(runs, data)
        plain_s.append(without_s)
        ratios[kind].append(with_s / without_s)
    medians = {f"{name} / plain": statistics.median(found) for name, found in ratios.items()}
    return {"plain epoch, s": statistics.median(plain_s), **medians}


def measure_compiled(repetitions: int) -> dict[str, float]:
    """The figures of a compiled network; each of its epochs is set against one of a network that is not compiled."""
    torch.manual_seed(0)
    count = SAMPLES // 8
    images, labels = torch.randn(count + VALIDATION, 3, 16, 16), torch.randint(10, (count + VALIDATION,))
    data, validation = (images[:count], labels[:count]), (images[count:], labels[count:])
    eager, plain, grown = Network(), Network(), Network()
    optimizers = [torch.optim.AdamW(one.parameters()) for one in (eager, plain, grown)]
    ratios: dict[str, list[float]] = {"plain": [], "without a seed": [], "seed alone": [], "seed active": []}
    runs = [Run(torch.compile(plain, dynamic=False), optimizers[1]), Run(eager, optimizers[0])]
    for _ in range(1 + repetitions):
        compiled_s, eager_s = epoch_s(runs, data)
        ratios["plain"].append(compiled_s / eager_s)
    torch.compiler.reset()  # or the code of the plain network would serve the other one
    epochs = 2 * repetitions + TEMPOS[-1]
    slots = ["stem", "layer1", "layer2"]
    grower = simic.Grower(grown, optimizers[2], slots=slots, validation=validation, epochs=epochs, policy="wait")
    grower._decider = Decider(Planter(repetitions), "warn")
    runs[0] = Run(torch.compile(grown, dynamic=False), optimizers[2], grower)
    for _ in range(epochs):
        stage = {slot.stage for slot in grower.state.slots} - {SeedStage.DORMANT}
        kind = "without a seed" if not stage else "seed alone" if stage <= YOUNG else "seed active"
        compiled_s, eager_s = epoch_s(runs, data)
        ratios[kind].append(compiled_s / eager_s)
    first = {f"compiled {name}, first epoch / eager": found[0] for name, found in ratios.items()}
    return first | {f"compiled {name} / eager": statistics.median(found[1:]) for name, found in ratios.items()}


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--repetitions", type=int, default=7, help="epochs without a seed, and with an active one")
    parser.add_argument("--no-compile", action="store_true", help="leave out the compiled network")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = measure(arguments.repetitions)
    if not arguments.no_compile:
        found |= measure_compiled(arguments.repetitions)
    result = {"name": "grower", "threads": 1, **found}
    table = "\n".join(f"{name:>46} {value:10.3f}" for name, value in found.items())
    show(arguments, result, table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
