"""Growing hosts: the batched ensemble against one ``nn.Module`` per host, trained in turn.

Usage: python benchmarks/hosts.py [--json] [--out FILE] [--check] [--hosts N] [--reference-hosts N] [--epochs N]
Both do the same work: the same data in the same order, autograd or its equivalent, SGD with momentum and clipping,
seeds that incubate and blend, validation and leave-one-out counterfactuals, which start at the seed's slot from the
states the full pass left there. Trajectories and leave-one-out accuracies are asserted to agree.
Times are CPU seconds on one thread; env-steps are host epochs. ``--check`` exits 1 below the target with seeds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from simic.contracts.actions import HEADS, Op
from simic.contracts.batches import OP_INDEX
from simic.contracts.config import WorldConfig
from simic.hosts.anatomy import BATCH, BLOCKS, CLIP_NORM, HIDDEN, LEARNING_RATE, MOMENTUM, SLOTS, STEPS, WIDTH
from simic.hosts.catalogue import load_blueprint
from simic.hosts.cohort import Cohort, epoch_noise
from simic.hosts.counterfactual import SMOOTHING
from simic.hosts.data import Part, epoch_order, host_samples
from simic.hosts.ensemble import Ensemble
from simic.hosts.keys import identify
from simic.hosts.weights import birth_of_hosts, birth_of_seed

TARGET = 4.0
"""The ratio to reach with seeds."""
CHAOTIC = ("gain",)
"""Families whose training multiplies a rounding error 1e5-fold within a few epochs, in the reference as well."""


class Role(NamedTuple):
    """What a slot's seed does in one epoch."""

    slot: int
    blueprint: str
    alpha: float
    is_incubating: bool


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
    """One host, written the usual way."""

    def __init__(self, key: int, world_set: str = "benchmark") -> None:
        super().__init__()
        cohort = Cohort(identify(world_set, [key]))
        weights = birth_of_hosts(cohort.keys, cohort.hidden)
        self.key, self.recipe = key, cohort.recipes[0]
        self.stem = nn.Parameter(weights.stem[0].clone())
        self.down = nn.ParameterList(part[0, :, :HIDDEN].clone() for part in weights.down)
        self.up = nn.ParameterList(part[0].clone() for part in weights.up)
        self.head = nn.Parameter(weights.head[0].clone())
        self.seeds = nn.ModuleDict()
        self.optimizer = torch.optim.SGD(self.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
        self.data = {part: self._load(part) for part in (Part.TRAIN, Part.VALIDATION)}

    def _load(self, part: Part) -> tuple[Tensor, Tensor, Tensor]:
        samples = host_samples(self.key, self.recipe, part)
        gain = np.exp(self.recipe.gain_level + self.recipe.gain_spread * samples.log_gain)
        return torch.from_numpy(samples.inputs), torch.from_numpy(samples.labels), torch.from_numpy(gain)[:, None]

    def germinate(self, slot: int, name: str) -> None:
        seed = grow(name, birth_of_seed(self.key, slot, 1, load_blueprint(name)))
        self.seeds[str(slot)] = seed
        if list(seed.parameters()):
            self.optimizer.add_param_group({"params": list(seed.parameters())})

    def block(self, index: int, x: Tensor, gain: Tensor) -> Tensor:
        x = x + (x @ self.down[index]).relu() @ self.up[index]
        return x * gain if self.recipe.gain_block == index else x

    def run_from(
        self, slot: int, x: Tensor, gain: Tensor, felt: dict[int, Role], noise: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        """Logits from the state in front of a slot; also the states in front of this and later slots."""
        states = []
        for index in range(slot, SLOTS):
            states.append(x)
            if index in felt:
                x = x + felt[index].alpha * self.seeds[str(index)](x, noise)
            if index < BLOCKS:
                x = self.block(index, x, gain)
        return x @ self.head.T, states

    def from_inputs(self, inputs: Tensor) -> Tensor:
        x = inputs @ self.stem
        return x if self.recipe.is_linear else x.relu()

    def train_epoch(self, epoch: int, role: Role | None) -> float:
        """Mean training loss of 16 steps."""
        inputs, labels, gains = self.data[Part.TRAIN]
        order = torch.from_numpy(epoch_order(np.array([self.key]), np.array([len(labels)]), epoch)[0])
        noise = None
        if role is not None and role.blueprint == "dropout":
            noise = torch.from_numpy(epoch_noise(np.array([self.key]), role.slot, epoch)[0])
        felt = {role.slot: role} if role is not None and role.alpha > 0 else {}
        total = 0.0
        for step in range(STEPS):
            rows = order[step * BATCH : (step + 1) * BATCH]
            drawn = None if noise is None else noise[step]
            logits, states = self.run_from(0, self.from_inputs(inputs[rows]), gains[rows], felt, drawn)
            loss = functional.cross_entropy(logits, labels[rows])
            self.optimizer.zero_grad()
            loss.backward()
            clipped = [p for name, p in self.named_parameters() if felt or not name.startswith("seeds")]
            if role is not None and role.is_incubating:
                self._incubate(role, states[role.slot].detach(), labels[rows], gains[rows])
            nn.utils.clip_grad_norm_([p for p in clipped if p.grad is not None], CLIP_NORM)
            self.optimizer.step()
            total += loss.item()
        return total / STEPS

    def _incubate(self, role: Role, x: Tensor, labels: Tensor, gains: Tensor) -> None:
        """The seed's own blended loss, the host detached."""
        parameters = list(self.seeds[str(role.slot)].parameters())
        if not parameters:
            return
        logits, _ = self.run_from(role.slot, x, gains, {role.slot: role._replace(alpha=1.0)}, None)
        gradients = torch.autograd.grad(functional.cross_entropy(logits, labels), parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        nn.utils.clip_grad_norm_(parameters, CLIP_NORM)

    @torch.no_grad()
    def evaluate(self, role: Role | None) -> tuple[float, float, float]:
        """Validation loss, accuracy, and accuracy without the seed (NaN if the host does not feel one)."""
        inputs, labels, gains = self.data[Part.VALIDATION]
        felt = {role.slot: role} if role is not None and role.alpha > 0 else {}
        x = self.from_inputs(inputs)
        logits, states = self.run_from(0, x, gains, felt, None)
        loss, accuracy = functional.cross_entropy(logits, labels), (logits.argmax(1) == labels).float().mean()
        without = float("nan")
        if role is not None and felt:
            logits, _ = self.run_from(role.slot, states[role.slot], gains, {}, None)
            without = (logits.argmax(1) == labels).float().mean().item()
        return loss.item(), accuracy.item(), without


class Trace(NamedTuple):
    """What N hosts showed over T epochs; arrays [T, N]."""

    train_loss: NDArray[np.float64]
    loss: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    without: NDArray[np.float64]
    """Accuracy without the seed; NaN where the host does not feel one."""
    roles: list[list[Role | None]]
    seconds: float


def actions_of(ensemble: Ensemble, *, with_seeds: bool) -> NDArray[np.int16]:
    """Germinate one seed per host at epoch 0, all blueprints and slots in turn; everything else happens by itself."""
    rows = np.full((len(ensemble), len(HEADS)), -1, dtype=np.int16)
    rows[:, 0] = OP_INDEX[Op.WAIT]
    can_grow = ensemble.masks().op[:, OP_INDEX[Op.GERMINATE]] & with_seeds
    kinds = len(ensemble.blueprints)
    for host in np.flatnonzero(can_grow).tolist():
        rows[host] = (OP_INDEX[Op.GERMINATE], host // kinds % SLOTS, host % kinds, -1, -1, -1, host % 2)
    return rows


def roles_of(ensemble: Ensemble) -> list[Role | None]:
    """What each host's seed did in the epoch just trained."""
    slots, roles = ensemble.observe().slots, []
    for host in range(len(ensemble)):
        mine = slice(host * SLOTS, (host + 1) * SLOTS)
        grown = np.flatnonzero(slots["blueprint"][mine] >= 0)
        if not len(grown):
            roles.append(None)
            continue
        slot = int(grown[0])
        alpha = float(slots["alpha"][mine][slot])
        name = ensemble.blueprints[int(slots["blueprint"][mine][slot])]
        roles.append(Role(slot, name, alpha, is_incubating=alpha == 0.0))
    return roles


class Contributions:
    """Single measurements out of the ensemble's running averages, as ``fold_contributions`` makes them."""

    def __init__(self, hosts: int) -> None:
        self._total, self._weight = np.zeros(hosts), np.zeros(hosts)

    def newest(self, ensemble: Ensemble, roles: list[Role | None]) -> NDArray[np.float64]:
        """[N] of the epoch just trained; NaN where no seed was felt."""
        averages = ensemble.observe().slots["contribution"].reshape(-1, SLOTS)
        values = np.full(len(roles), np.nan)
        for host, role in enumerate(roles):
            if role is None or role.alpha == 0.0:
                continue
            before = (1.0 - SMOOTHING) * self._total[host]
            self._weight[host] = (1.0 - SMOOTHING) * self._weight[host] + SMOOTHING
            self._total[host] = averages[host, role.slot] * self._weight[host]
            values[host] = (self._total[host] - before) / SMOOTHING
        return values


def run_ensemble(keys: Sequence[int], epochs: int, *, with_seeds: bool) -> Trace:
    ensemble = Ensemble(identify("benchmark", keys), WorldConfig())
    losses, roles, without, seconds = [], [], [], 0.0
    contributions = Contributions(len(ensemble))
    for _ in range(epochs):
        actions = actions_of(ensemble, with_seeds=with_seeds)
        start = time.process_time()
        ensemble.step(actions)
        system = ensemble.observe().system
        seconds += time.process_time() - start
        losses.append([system[name] for name in ("train_loss", "validation_loss", "validation_accuracy")])
        roles.append(roles_of(ensemble))
        without.append(system["validation_accuracy"] - contributions.newest(ensemble, roles[-1]))
    train_loss, loss, accuracy = np.array(losses, dtype=np.float64).swapaxes(0, 1)
    return Trace(train_loss, loss, accuracy, np.array(without), roles, seconds)


def run_reference(keys: Sequence[int], roles: list[list[Role | None]]) -> Trace:
    """The same hosts in turn, their seeds in the roles the ensemble gave them."""
    hosts = [ReferenceHost(key) for key in keys]
    start, results = time.process_time(), np.empty((4, len(roles), len(keys)))
    for column, host in enumerate(hosts):
        for epoch, row in enumerate(roles):
            role = row[column]
            if role is not None and not host.seeds:
                host.germinate(role.slot, role.blueprint)
            train_loss = host.train_epoch(epoch, role)
            results[:, epoch, column] = train_loss, *host.evaluate(role)
    return Trace(*results, roles, time.process_time() - start)


def assert_agree(ours: Trace, theirs: Trace, hosts: int) -> None:
    """Rounding alone may tell the two apart, and it grows from step to step. Hosts have the keys 0, 1, 2 ..."""
    np.testing.assert_allclose(ours.train_loss[0, :hosts], theirs.train_loss[0], rtol=2e-3)
    np.testing.assert_allclose(ours.loss[0, :hosts], theirs.loss[0], rtol=1e-2)
    assert np.abs(ours.accuracy[:, :hosts] - theirs.accuracy).mean() < 0.01
    blended = np.isfinite(theirs.without)
    np.testing.assert_array_equal(np.isfinite(ours.without[:, :hosts]), blended)
    if not blended.any():
        return
    assert np.abs(ours.without[:, :hosts] - theirs.without)[blended].mean() < 0.01
    steady = np.array([host.family not in CHAOTIC for host in identify("benchmark", range(hosts))])
    columns = np.flatnonzero(blended.any(axis=0) & steady)
    first = blended.argmax(axis=0)[columns], columns
    np.testing.assert_allclose(ours.train_loss[first], theirs.train_loss[first], rtol=1e-3)
    # One validation sample is 1/450; a logit on the border may fall to either side.
    np.testing.assert_allclose(ours.without[first], theirs.without[first], atol=2.1 / 450)


def compare(hosts: int, reference_hosts: int, epochs: int, *, with_seeds: bool) -> dict[str, float]:
    """Env-steps per CPU second of both."""
    ours = run_ensemble(range(hosts), epochs, with_seeds=with_seeds)
    theirs = run_reference(range(reference_hosts), ours.roles)
    assert_agree(ours, theirs, reference_hosts)
    fast, slow = hosts * epochs / ours.seconds, reference_hosts * epochs / theirs.seconds
    return {"ensemble_per_s": fast, "reference_per_s": slow, "ratio": fast / slow}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, help="also write the results here, as JSON")
    parser.add_argument("--check", action="store_true", help=f"exit 1 below {TARGET:g}x with seeds")
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--reference-hosts", type=int, default=18)
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes = options.hosts, min(options.hosts, options.reference_hosts), options.epochs
    results = {name: compare(*sizes, with_seeds=seeds) for name, seeds in (("hosts only", False), ("with seeds", True))}
    text = json.dumps({"name": "hosts", "hosts": options.hosts, "target_ratio": TARGET, "results": results})
    if options.out is not None:
        options.out.write_text(text + "\n", "utf-8")
    print(text if options.json else table_of(results, options.hosts))
    return int(options.check and results["with seeds"]["ratio"] < TARGET)


def table_of(results: dict[str, dict[str, float]], hosts: int) -> str:
    """For people."""
    lines = [f"env-steps per CPU second, N={hosts}, one thread (target with seeds: {TARGET:g}x)"]
    lines.append(f"{'':12s}{'ensemble':>10s}{'in turn':>10s}{'ratio':>8s}")
    for name, row in results.items():
        lines.append(f"{name:12s}{row['ensemble_per_s']:10.0f}{row['reference_per_s']:10.1f}{row['ratio']:7.1f}x")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
