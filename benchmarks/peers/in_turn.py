"""Peer (a): one ``nn.Module`` per host, written the usual way and trained in turn under autograd.

Shapes: S slots, B batch, D width, n samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from peers.scene import SET, Cast, Host, Role, Shown, birth, host_of, noise_of, order_of
from simic.hosts.batched.sizes import BATCH, BLOCKS, CLIP_NORM, LEARNING_RATE, MOMENTUM, SLOTS, STEPS, WIDTH

__all__ = ["InTurn", "ReferenceHost", "flatten", "grow"]


class Residual(nn.Module):
    """``bottleneck``, ``dense`` and, on a normalised input, ``heavy``."""

    def __init__(self, units: int, *, is_normed: bool) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(WIDTH, units), nn.Linear(units, WIDTH)
        self.norm = nn.LayerNorm(WIDTH) if is_normed else nn.Identity()

    def forward(self, h: Tensor, _noise: Tensor | None) -> Tensor:
        return self.up(self.down(self.norm(h)).relu())


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(WIDTH, 4), nn.Linear(4, WIDTH)

    def forward(self, h: Tensor, _noise: Tensor | None) -> Tensor:
        logit = self.up(self.down(functional.layer_norm(h, (WIDTH,))).relu())
        return h * (2.0 * torch.sigmoid(2.0 * logit) - 1.0)


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.exponent, self.bias = nn.Parameter(torch.zeros(WIDTH)), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, h: Tensor, _noise: Tensor | None) -> Tensor:
        size = (h.square().mean(dim=1, keepdim=True) + 1e-6).sqrt()
        return h * (size ** (-0.35 * self.exponent) - 1.0) + self.bias


class Dropout(nn.Module):
    def forward(self, h: Tensor, noise: Tensor | None) -> Tensor:
        return torch.zeros_like(h) if noise is None else h * ((noise >= 0.6) / 0.4 - 1.0)


def grow(name: str, values: Tensor) -> nn.Module:
    """A seed with the parameters the ensemble gives it at birth."""
    if name == "norm":
        return Norm()
    if name == "dropout":
        return Dropout()
    units = {"gate": 4, "bottleneck": 4, "dense": 12, "heavy": 32}[name]
    seed = Gate() if name == "gate" else Residual(units, is_normed=name == "heavy")
    with torch.no_grad():
        for parameter in (seed.down.bias, seed.up.weight, seed.up.bias):
            parameter.zero_()
        seed.down.weight.copy_(values[: WIDTH * units].view(WIDTH, units).T)
    return seed


def flatten(name: str, seed: nn.Module) -> list[Tensor]:
    """A seed's parameters in the order of the ensemble's."""
    if name == "norm":
        return [seed.exponent, seed.bias]
    if name == "dropout":
        return []
    parts = [seed.down.weight.T.reshape(-1), seed.up.weight.T.reshape(-1), seed.down.bias, seed.up.bias]
    return [*parts, seed.norm.weight - 1.0, seed.norm.bias] if name == "heavy" else parts


class ReferenceHost(nn.Module):
    """One host."""

    def __init__(self, key: int, world_set: str = SET) -> None:
        super().__init__()
        self.host: Host = host_of(key, world_set)
        self.stem = nn.Parameter(self.host.stem.clone())
        self.down = nn.ParameterList(part.clone() for part in self.host.down)
        self.up = nn.ParameterList(part.clone() for part in self.host.up)
        self.head = nn.Parameter(self.host.head.clone())
        self.seeds = nn.ModuleDict()
        self.rate = LEARNING_RATE * self.host.rate
        self.optimizer = torch.optim.SGD(self.parameters(), lr=self.rate, momentum=MOMENTUM)

    def germinate(self, slot: int, name: str) -> None:
        """Plant a slot's first seed."""
        seed = grow(name, birth(self.host.key, slot, name))
        self.seeds[str(slot)] = seed
        if list(seed.parameters()):
            self.optimizer.add_param_group({"params": list(seed.parameters())})

    def block(self, index: int, x: Tensor, gain: Tensor) -> Tensor:
        x = x + (x @ self.down[index]).relu() @ self.up[index]
        return x * gain if index in self.host.gain_blocks else x

    def run_from(
        self, slot: int, x: Tensor, gain: Tensor, active: dict[int, float], noise: dict[int, Tensor] | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Logits from the state in front of a slot, ``active`` being alpha by slot; also those states, slot by slot."""
        states = []
        for index in range(slot, SLOTS):
            states.append(x)
            if index in active:
                x = x + active[index] * self.seeds[str(index)](x, None if noise is None else noise.get(index))
            if index < BLOCKS:
                x = self.block(index, x, gain)
        return x @ self.head.T, states

    def from_inputs(self, inputs: Tensor) -> Tensor:
        x = inputs @ self.stem
        return x if self.host.is_linear else x.relu()

    def train_epoch(self, epoch: int, assignment: Iterable[Role] = ()) -> float:
        """Mean training loss of 16 steps."""
        (inputs, labels, gains), assignment = self.host.train, tuple(assignment)
        order = order_of([self.host.key], [len(labels)], epoch)[0]
        active = {role.slot: role.alpha for role in assignment if role.alpha > 0}
        drawn = {r.slot: noise_of([self.host.key], r.slot, epoch)[0] for r in assignment if r.blueprint == "dropout"}
        shared = [p for name, p in self.named_parameters() if not name.startswith("seeds")]
        shared += [p for slot in active for p in self.seeds[str(slot)].parameters()]
        incubating = [role.slot for role in assignment if role.is_incubating and role.blueprint != "dropout"]
        total = 0.0
        for step in range(STEPS):
            rows = order[step * BATCH : (step + 1) * BATCH]
            noise = {slot: values[step] for slot, values in drawn.items()}
            logits, states = self.run_from(0, self.from_inputs(inputs[rows]), gains[rows], active, noise)
            loss = functional.cross_entropy(logits, labels[rows])
            self.optimizer.zero_grad()
            loss.backward()
            for slot in incubating:
                x = states[slot].detach()
                beside, _ = self.run_from(slot, x, gains[rows], {**active, slot: 1.0}, noise)
                self._incubate(slot, functional.cross_entropy(beside, labels[rows]))
            nn.utils.clip_grad_norm_(shared, CLIP_NORM)
            with torch.no_grad():
                for parameter in (*shared, *(p for slot in incubating for p in self.seeds[str(slot)].parameters())):
                    parameter.mul_(1.0 - self.rate * self.host.decay)
            self.optimizer.step()
            total += loss.item()
        return total / STEPS

    def _incubate(self, slot: int, loss: Tensor) -> None:
        """A seed learns from its own blended loss, everything else detached."""
        parameters = list(self.seeds[str(slot)].parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = gradient
        nn.utils.clip_grad_norm_(parameters, CLIP_NORM)

    @torch.no_grad()
    def evaluate(self, assignment: Iterable[Role] = ()) -> tuple[float, float, list[float]]:
        """Validation loss, accuracy, and accuracy without each slot's seed (NaN if the host does not feel one)."""
        inputs, labels, gains = self.host.validation
        active = {role.slot: role.alpha for role in assignment if role.alpha > 0}
        logits, states = self.run_from(0, self.from_inputs(inputs), gains, active)
        loss, accuracy = functional.cross_entropy(logits, labels), (logits.argmax(1) == labels).float().mean()
        without = [float("nan")] * SLOTS
        for slot in active:
            others = {index: alpha for index, alpha in active.items() if index != slot}
            logits, _ = self.run_from(slot, states[slot], gains, others)
            without[slot] = (logits.argmax(1) == labels).float().mean().item()
        return loss.item(), accuracy.item(), without


class InTurn:
    """Hosts one after the other."""

    def __init__(self, keys: Sequence[int], world_set: str = SET) -> None:
        self.hosts = [ReferenceHost(key, world_set) for key in keys]

    def epoch(self, number: int, cast: Cast) -> Shown:
        """See ``Contender``."""
        rows = []
        for index, host in enumerate(self.hosts):
            assignment = cast.assignment(index)
            for role in assignment:
                if str(role.slot) not in host.seeds:
                    host.germinate(role.slot, role.blueprint)
            rows.append((host.train_epoch(number, assignment), *host.evaluate(assignment)))
        train_loss, loss, accuracy, without = (np.array(column) for column in zip(*rows, strict=True))
        return Shown(train_loss, loss, accuracy, without)
