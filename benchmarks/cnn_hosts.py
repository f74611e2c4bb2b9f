"""Growing convolutional hosts: the stacked form against one ``nn.Module`` per host, trained in turn.

Usage: python benchmarks/cnn_hosts.py [--json] [--out FILE] [--check] [--reference-hosts N] [--epochs N]
Both do the same work: the same images in the same order, SGD with momentum and clipping, no seeds or one per host that
incubates and then blends (all blueprints and slots in turn), validation, and leave-one-out from the seed's slot on.
Losses, accuracies and first leave-one-out accuracies are asserted to agree. Times are CPU seconds on one thread;
env-steps are host epochs. ``--check`` exits 1 below the target at 64 hosts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from common.command_line import make_parser, show
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from simic.contracts.actions import HEADS, Op
from simic.contracts.batches import OP_INDEX
from simic.contracts.settings.run import WorldConfig
from simic.hosts.batched.data import epoch_order, host_samples
from simic.hosts.batched.dataset import epoch_noise, recipes_of
from simic.hosts.batched.host_batch import BatchedHosts
from simic.hosts.batched.sizes import BATCH, BLOCKS, CLIP_NORM, LEARNING_RATE, MOMENTUM, SLOTS, STEPS
from simic.hosts.batched.weights import initial_seed
from simic.hosts.ensemble import Ensemble
from simic.hosts.host_sets import identify
from simic.hosts.interfaces import DataSplit, Pairs
from simic.hosts.plugins import load_blueprint
from simic.hosts.trunks.cnn import CHANNELS, CnnTrunk

WORLD = "images"
TARGET = 3.5
"""The ratio to reach at ``JUDGED`` hosts, with and without seeds."""
JUDGED = 64
COUNTS = (1, 16, JUDGED)
CHAOTIC = ("gain",)
"""Families whose training multiplies a rounding error within a few epochs, in the reference as well."""
SITE = CnnTrunk.topology.sites[0]
UNITS = {"gate": 4, "bottleneck": 4, "dense": 6, "heavy": 16}


class Role(NamedTuple):
    """Slot, blueprint and alpha of a host's seed in one epoch; alpha is 0 while the seed incubates."""

    slot: int
    blueprint: str
    alpha: float


class Residual(nn.Module):
    """Every blueprint of the form relu(W * [norm] h) U; W is the first layer, U the last."""

    def __init__(self, first: nn.Module, units: int, *, is_normed: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(CHANNELS) if is_normed else None
        self.first, self.last = first, nn.Conv2d(units, CHANNELS, 1)

    def forward(self, h: Tensor, _noise: Tensor | None) -> Tensor:
        if self.norm is not None:
            h = self.norm(h.movedim(1, 3)).movedim(3, 1)
        return self.last(self.first(h).relu())


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(CHANNELS, UNITS["gate"]), nn.Linear(UNITS["gate"], CHANNELS)

    def forward(self, h: Tensor, _noise: Tensor | None) -> Tensor:
        squeezed = functional.layer_norm(h.mean(dim=(2, 3)), (CHANNELS,))
        opened = 2.0 * torch.sigmoid(2.0 * self.last(self.first(squeezed).relu()))
        return h * (opened - 1.0)[:, :, None, None]


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.exponent = nn.Parameter(torch.zeros(CHANNELS, 1, 1))
        self.bias = nn.Parameter(torch.zeros(CHANNELS, 1, 1))

    def forward(self, h: Tensor, _noise: Tensor | None) -> Tensor:
        size = (h.square().mean(dim=(1, 2, 3), keepdim=True) + 1e-6).sqrt()
        return h * (size ** (-0.35 * self.exponent) - 1.0) + self.bias


class Dropout(nn.Module):
    def forward(self, h: Tensor, noise: Tensor | None) -> Tensor:
        return torch.zeros_like(h) if noise is None else h * ((noise >= 0.6) / 0.4 - 1.0)[:, :, None, None]


def grow(name: str, values: Tensor) -> nn.Module:
    """A seed with the parameters [P] that the stacked form gives it at birth."""
    if name in ("norm", "dropout"):
        return Norm() if name == "norm" else Dropout()
    if name == "gate":
        seed: nn.Module = Gate()
        kernel = values[: CHANNELS * UNITS["gate"]].view(CHANNELS, -1).T
    elif name == "conv3x3":
        seed = Residual(nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), CHANNELS)
        kernel = values[: 9 * CHANNELS**2].view(3, 3, CHANNELS, CHANNELS).permute(3, 2, 0, 1)
    elif name == "depthwise":
        seed = Residual(nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=CHANNELS), CHANNELS)
        kernel = values[: 9 * CHANNELS].view(3, 3, 1, CHANNELS).permute(3, 2, 0, 1)
    else:
        units = UNITS[name]
        seed = Residual(nn.Conv2d(CHANNELS, units, 1), units, is_normed=name == "heavy")
        kernel = values[: CHANNELS * units].view(CHANNELS, units).T[:, :, None, None]
    with torch.no_grad():
        for parameter in (seed.first.bias, seed.last.weight, seed.last.bias):
            parameter.zero_()
        seed.first.weight.copy_(kernel)
    return seed


def planes(pairs: Pairs) -> NDArray[np.float32]:
    """Image a, image b and the selector, [n, 3, 8, 8]."""
    selector = np.broadcast_to(np.where(pairs.selector, 1.0, -1.0)[:, None, None], pairs.image_a.shape)
    return np.stack([pairs.image_a, pairs.image_b, selector], axis=1).astype(np.float32)


class ReferenceHost(nn.Module):
    """One host, written the usual way, channels first."""

    def __init__(self, key: int) -> None:
        super().__init__()
        identity = identify(WORLD, [key])
        stacked = BatchedHosts(identity, [], CnnTrunk)
        stem, *blocks, head = (part[0] for part in stacked.weights.parts)
        self.key, self.recipe = key, recipes_of(identity)[0]
        self.stem = nn.Parameter(stem[:8].view(2, 2, 2, CHANNELS).permute(3, 0, 1, 2).contiguous())
        self.selector, self.bias = nn.Parameter(stem[8].clone()), nn.Parameter(stem[9].clone())
        self.down = nn.ParameterList(kernel.permute(3, 2, 0, 1).contiguous() for kernel in blocks[::2])
        self.up = nn.ParameterList(matrix.T[:, :, None, None].contiguous() for matrix in blocks[1::2])
        self.head = nn.Parameter(head.view(-1, *SITE.space, CHANNELS).permute(0, 3, 1, 2).flatten(1))
        self.seeds = nn.ModuleDict()
        self.optimizer = torch.optim.SGD(self.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
        self.data = {part: self._load(part) for part in (DataSplit.TRAIN, DataSplit.VALIDATION)}

    def _load(self, part: DataSplit) -> tuple[Tensor, Tensor, Tensor]:
        samples = host_samples(self.key, self.recipe, part, planes)
        gain = np.exp(self.recipe.gain_level + self.recipe.gain_spread * samples.log_gain)
        return torch.from_numpy(samples.inputs), torch.from_numpy(samples.labels), torch.from_numpy(gain)

    def germinate(self, role: Role) -> None:
        seed = grow(role.blueprint, initial_seed(self.key, role.slot, 1, load_blueprint(role.blueprint), SITE))
        self.seeds[str(role.slot)] = seed
        if list(seed.parameters()):
            self.optimizer.add_param_group({"params": list(seed.parameters())})

    def from_inputs(self, inputs: Tensor) -> Tensor:
        told = inputs[:, 2, :1, 0] * self.selector
        x = functional.conv2d(inputs[:, :2], self.stem, self.bias, stride=2) + told[:, :, None, None]
        return x if self.recipe.is_linear else x.relu()

    def block(self, index: int, x: Tensor, gain: Tensor) -> Tensor:
        unit = functional.conv2d(x, self.down[index], padding=1).relu()
        x = x + functional.conv2d(unit, self.up[index])
        return x * gain[:, None, None, None] if index in self.recipe.gain_blocks else x

    def run_from(
        self, slot: int, x: Tensor, gain: Tensor, active: tuple[int, float] | None, noise: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        """Logits from the state in front of a slot, with (slot, alpha) felt; also the states in front of the slots."""
        states = []
        for index in range(slot, SLOTS):
            states.append(x)
            if active is not None and active[0] == index:
                x = x + active[1] * self.seeds[str(index)](x, noise)
            if index < BLOCKS:
                x = self.block(index, x, gain)
        return x.flatten(1) @ self.head.T, states

    def train_epoch(self, epoch: int, role: Role | None) -> float:
        """Mean training loss."""
        inputs, labels, gains = self.data[DataSplit.TRAIN]
        order = torch.from_numpy(epoch_order(np.array([self.key]), np.array([len(labels)]), epoch)[0])
        noise = None
        if role is not None and role.blueprint == "dropout":
            noise = torch.from_numpy(epoch_noise(np.array([self.key]), role.slot, epoch, SITE)[0])
        active = (role.slot, role.alpha) if role is not None and role.alpha > 0 else None
        total = 0.0
        for step in range(STEPS):
            rows = order[step * BATCH : (step + 1) * BATCH]
            drawn = None if noise is None else noise[step]
            logits, states = self.run_from(0, self.from_inputs(inputs[rows]), gains[rows], active, drawn)
            loss = functional.cross_entropy(logits, labels[rows])
            self.optimizer.zero_grad()
            loss.backward()
            clipped = [p for name, p in self.named_parameters() if active or not name.startswith("seeds")]
            if role is not None and active is None:
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
        logits, _ = self.run_from(role.slot, x, gains, (role.slot, 1.0), None)
        gradients = torch.autograd.grad(functional.cross_entropy(logits, labels), parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        nn.utils.clip_grad_norm_(parameters, CLIP_NORM)

    @torch.no_grad()
    def evaluate(self, role: Role | None) -> tuple[float, float, float]:
        """Validation loss, accuracy, and accuracy without the seed (NaN if the host does not feel one)."""
        inputs, labels, gains = self.data[DataSplit.VALIDATION]
        active = (role.slot, role.alpha) if role is not None and role.alpha > 0 else None
        logits, states = self.run_from(0, self.from_inputs(inputs), gains, active, None)
        loss, accuracy = functional.cross_entropy(logits, labels), (logits.argmax(1) == labels).float().mean()
        without = float("nan")
        if role is not None and active is not None:
            logits, _ = self.run_from(role.slot, states[role.slot], gains, None, None)
            without = (logits.argmax(1) == labels).float().mean().item()
        return loss.item(), accuracy.item(), without


class Trace(NamedTuple):
    """Losses and accuracies of N hosts over T epochs, [T, N] each, and the seconds of the whole rollout."""

    train_loss: NDArray[np.float64]
    loss: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    without: NDArray[np.float64]
    """Accuracy without the seed; NaN but for the first epoch in which the host feels it, in the stacked form."""
    seconds: float


def actions_of(ensemble: Ensemble, *, with_seeds: bool) -> NDArray[np.int16]:
    """Germinate one seed per host at once, all blueprints and slots in turn; everything else happens by itself."""
    rows = np.full((len(ensemble), len(HEADS)), -1, dtype=np.int16)
    rows[:, 0] = OP_INDEX[Op.WAIT]
    masks = ensemble.masks()
    for host in np.flatnonzero(masks.op[:, OP_INDEX[Op.GERMINATE]] & with_seeds).tolist():
        offered = np.flatnonzero(masks.blueprint[host])
        blueprint = offered[host % len(offered)]
        rows[host] = (OP_INDEX[Op.GERMINATE], host // len(offered) % SLOTS, blueprint, -1, -1, -1, 0)
    return rows


def roles_of(ensemble: Ensemble) -> list[Role | None]:
    """Return blueprint, slot and alpha of each host's only seed in the epoch just trained; None without a seed."""
    slots, assignment = ensemble.observe().slots, []
    for host in range(len(ensemble)):
        mine = slice(host * SLOTS, (host + 1) * SLOTS)
        grown = np.flatnonzero(slots["blueprint"][mine] >= 0).tolist()
        names = [ensemble.blueprints[int(slots["blueprint"][mine][slot])] for slot in grown]
        found = [Role(slot, name, float(slots["alpha"][mine][slot])) for slot, name in zip(grown, names, strict=True)]
        assignment.append(found[0] if found else None)
    return assignment


def run_stacked(
    keys: Sequence[int], epochs: int, *, with_seeds: bool, then: Callable[[int, list[Role | None]], None] | None = None
) -> Trace:
    """``then`` is called with every epoch and what the seeds did in it; its time does not count."""
    ensemble = Ensemble(identify(WORLD, keys), WorldConfig(set=WORLD))
    rows, assignment, without, seconds = [], [], [], 0.0
    is_known = np.zeros(len(keys), dtype=bool)
    for epoch in range(epochs):
        actions = actions_of(ensemble, with_seeds=with_seeds)
        start = time.process_time()
        ensemble.step(actions)
        observed = ensemble.observe()
        seconds += time.process_time() - start
        rows.append([observed.system[name] for name in ("train_loss", "validation_loss", "validation_accuracy")])
        assignment.append(roles_of(ensemble))
        # A running average's first value is a measurement as it is.
        average = np.nan_to_num(observed.slots["contribution"].reshape(-1, SLOTS)).sum(axis=1)
        is_active = np.array([role is not None and role.alpha > 0 for role in assignment[-1]])
        without.append(np.where(is_active & ~is_known, rows[-1][2] - average, np.nan))
        is_known |= is_active
        if then is not None:
            then(epoch, assignment[-1])
    train_loss, loss, accuracy = np.array(rows, dtype=np.float64).swapaxes(0, 1)
    return Trace(train_loss, loss, accuracy, np.array(without), seconds)


class InTurn:
    """The same hosts one after the other, their seeds in the roles the stacked form gave them."""

    def __init__(self, keys: Sequence[int]) -> None:
        self.hosts = [ReferenceHost(key) for key in keys]
        self.rows: list[list[tuple[float, ...]]] = []
        self.seconds = 0.0

    def run(self, epoch: int, assignment: list[Role | None]) -> None:
        """One epoch of all."""
        start, row = time.process_time(), []
        for host, role in zip(self.hosts, assignment, strict=False):
            if role is not None and not host.seeds:
                host.germinate(role)
            train_loss = host.train_epoch(epoch, role)
            row.append((train_loss, *host.evaluate(role)))
        self.seconds += time.process_time() - start
        self.rows.append(row)

    def trace(self) -> Trace:
        """What they showed so far."""
        return Trace(*np.moveaxis(np.array(self.rows), 2, 0), self.seconds)


def assert_agree(ours: Trace, theirs: Trace) -> None:
    """Rounding alone may tell the two apart, and it grows from step to step. Hosts have the keys 0, 1, 2 ..."""
    hosts = theirs.loss.shape[1]
    steady = np.array([host.family not in CHAOTIC for host in identify(WORLD, range(hosts))])
    np.testing.assert_allclose(ours.train_loss[0, :hosts], theirs.train_loss[0], rtol=1e-2)
    np.testing.assert_allclose(ours.train_loss[0, :hosts][steady], theirs.train_loss[0][steady], rtol=1e-4)
    np.testing.assert_allclose(ours.loss[0, :hosts][steady], theirs.loss[0][steady], rtol=1e-3)
    assert np.abs(ours.accuracy[:, :hosts] - theirs.accuracy)[:, steady].mean() < 0.01
    first = np.isfinite(ours.without[:, :hosts])
    assert (first <= np.isfinite(theirs.without)).all()
    if first.any():
        assert np.abs(ours.without[:, :hosts] - theirs.without)[first & steady].mean() < 0.01


def compare(count: int, reference_hosts: int, epochs: int, *, with_seeds: bool) -> dict[str, float]:
    """Env-steps per CPU second of both."""
    in_turn = InTurn(range(min(reference_hosts, count)))
    # Epoch by epoch, so that a busy machine slows both alike.
    ours = run_stacked(range(count), epochs, with_seeds=with_seeds, then=in_turn.run)
    theirs = in_turn.trace()
    assert_agree(ours, theirs)
    fast = count * epochs / ours.seconds
    slow = theirs.loss.size / theirs.seconds
    return {"stacked_per_s": fast, "reference_per_s": slow, "ratio": fast / slow}


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--check", action="store_true", help=f"exit 1 below {TARGET:g}x at {JUDGED} hosts")
    parser.add_argument("--reference-hosts", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=6)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = {
        f"{name}_{count}": compare(count, arguments.reference_hosts, arguments.epochs, with_seeds=name == "seeds")
        for name in ("idle", "seeds")
        for count in COUNTS
    }
    show(arguments, {"name": "cnn_hosts", "threads": 1, "target_ratio": TARGET, "results": results}, table_of(results))
    worst = min(results[f"{name}_{JUDGED}"]["ratio"] for name in ("idle", "seeds"))
    return int(arguments.check and worst < TARGET)


def table_of(results: dict[str, dict[str, float]]) -> str:
    """For people."""
    lines = [
        "Convolutional hosts, 1 thread, env-steps per CPU second, same trajectories",
        f"{'':10}{'stacked':>10}{'in turn':>10}{'speed-up':>10}",
    ]
    for name, row in results.items():
        lines.append(f"{name:10}{row['stacked_per_s']:10.0f}{row['reference_per_s']:10.1f}{row['ratio']:9.1f}x")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
