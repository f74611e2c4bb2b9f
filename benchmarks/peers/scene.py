"""What every contender grows: hosts by key, their samples and births, and who does what in an epoch.

Everything the peers know of the inside of ``simic.hosts`` is here, so that a change there is a change in one place.
Shapes: N hosts, S slots, T steps, B batch, D width, n samples, P parameters of a seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.contracts.actions import HEADS, Op
from simic.contracts.batches import OP_INDEX
from simic.contracts.settings.lifecycle import LifecycleConfig
from simic.contracts.settings.run import WorldConfig
from simic.hosts.batched.data import epoch_order, host_samples
from simic.hosts.batched.dataset import epoch_noise, recipes_of
from simic.hosts.batched.sizes import BLOCKS, SLOTS
from simic.hosts.batched.trunk import initial_weights
from simic.hosts.batched.weights import initial_seed
from simic.hosts.ensemble import Ensemble
from simic.hosts.host_sets import STANDARD, identify
from simic.hosts.interfaces import DataSplit, Measurement
from simic.hosts.plugins import load_blueprint
from simic.hosts.trunks.mlp import MlpTrunk

__all__ = [
    "KINDS",
    "SET",
    "STEERED_EPOCHS",
    "Cast",
    "Contender",
    "EnsembleContender",
    "Host",
    "Role",
    "Samples",
    "Shown",
    "birth",
    "host_of",
    "is_steady",
    "noise_of",
    "order_of",
    "sound_keys",
    "validate",
]

SET = "compound"
"""All three slots may hold a seed at a time."""
KINDS = STANDARD
"""Blueprints that the peers know."""
CHAOTIC = ("both", "gain")
"""Families whose training multiplies a rounding error 1e5-fold within a few epochs, in every formulation."""
STEERED_EPOCHS = SLOTS
"""Epochs until every slot can hold a seed, as a host acts once an epoch."""


class Samples(NamedTuple):
    """One part of a host's samples."""

    inputs: Tensor
    """[n, 34]"""
    labels: Tensor
    """int64 [n]"""
    gain: Tensor
    """[n, 1]: what the gained block's output is multiplied with."""


class Host(NamedTuple):
    """One host at birth."""

    key: int
    is_linear: bool
    gain_blocks: tuple[int, ...]
    rate: float
    decay: float
    stem: Tensor
    """[34, D]"""
    down: tuple[Tensor, ...]
    """[D, M] per block."""
    up: tuple[Tensor, ...]
    """[M, D] per block."""
    head: Tensor
    """[10, D]"""
    train: Samples
    validation: Samples


class Role(NamedTuple):
    """The seed of one slot in one epoch: its blueprint, its alpha, and whether it is trained in isolation."""

    slot: int
    blueprint: str
    alpha: float
    is_incubating: bool


class Cast(NamedTuple):
    """Blueprint and alpha of the seeds of N hosts with S slots in one epoch, as every contender gets them."""

    kind: NDArray[np.int64]
    """[N, S]: index into ``KINDS``; -1 where there is no seed."""
    alpha: NDArray[np.float32]
    """[N, S]: 0 where the host does not feel the seed."""

    @property
    def is_incubating(self) -> NDArray[np.bool_]:
        """[N, S]: learns beside its host; a seed without parameters has nothing to learn."""
        return (self.kind >= 0) & (self.kind != KINDS.index("dropout")) & (self.alpha == 0)

    def first(self, hosts: int) -> Cast:
        """Return the seeds of the first ``hosts`` hosts."""
        return Cast(self.kind[:hosts], self.alpha[:hosts])

    def assignment(self, host: int) -> tuple[Role, ...]:
        """Return the seeds of one host in the order of its slots; empty slots are left out."""
        return tuple(
            Role(slot, KINDS[self.kind[host, slot]], float(self.alpha[host, slot]), bool(is_incubating))
            for slot, is_incubating in enumerate(self.is_incubating[host])
            if self.kind[host, slot] >= 0
        )


class Shown(NamedTuple):
    """Losses and accuracies of N hosts with S slots after one epoch, in float64; compared between contenders."""

    train_loss: NDArray[np.float64]
    """[N]: mean over the steps."""
    loss: NDArray[np.float64]
    """[N]: on validation samples, as the rest."""
    accuracy: NDArray[np.float64]
    """[N]"""
    without: NDArray[np.float64]
    """[N, S]: accuracy without that slot's seed; NaN where the host feels none there."""


class Contender(Protocol):
    """An implementation that grows the hosts of given keys, such as the ensemble or a peer."""

    def epoch(self, number: int, cast: Cast) -> Shown:
        """Train one epoch and validate."""
        ...


def is_steady(keys: Sequence[int]) -> NDArray[np.bool_]:
    """Which hosts' numbers can be compared one by one, [N]."""
    return np.array([host.family not in CHAOTIC for host in identify(SET, keys)])


def host_of(key: int, world_set: str = SET) -> Host:
    """A host at birth with all its samples."""
    recipes = recipes_of(identify(world_set, [key]))
    recipe, trunk = recipes[0], MlpTrunk(recipes)
    scales = np.array([recipe.layer_scales], dtype=np.float32)
    stem, *blocks, head = (part[0] for part in initial_weights(trunk, np.array([key]), scales).parts)

    def load(part: DataSplit) -> Samples:
        samples = host_samples(key, recipe, part, trunk.inputs)
        gain = np.exp(recipe.gain_level + recipe.gain_spread * samples.log_gain)
        return Samples(
            torch.from_numpy(samples.inputs), torch.from_numpy(samples.labels), torch.from_numpy(gain)[:, None]
        )

    return Host(
        key=key,
        is_linear=recipe.is_linear,
        gain_blocks=recipe.gain_blocks,
        rate=recipe.rate,
        decay=recipe.decay,
        stem=stem,
        down=tuple(blocks[: 2 * BLOCKS : 2]),
        up=tuple(blocks[1 : 2 * BLOCKS : 2]),
        head=head,
        train=load(DataSplit.TRAIN),
        validation=load(DataSplit.VALIDATION),
    )


def order_of(keys: Sequence[int], samples: Sequence[int], epoch: int) -> Tensor:
    """Which samples the hosts see in an epoch, int64 [N, T * B]."""
    return torch.from_numpy(epoch_order(np.array(keys), np.array(samples), epoch))


def noise_of(keys: Sequence[int], slot: int, epoch: int) -> Tensor:
    """Uniform numbers for the noisy seeds of a slot, [N, T, B, D]."""
    return torch.from_numpy(epoch_noise(np.array(keys), slot, epoch, MlpTrunk.topology.sites[slot]))


def birth(key: int, slot: int, kind: str) -> Tensor:
    """Parameters [P] of the first seed in a host's slot."""
    return initial_seed(key, slot, 1, load_blueprint(kind), MlpTrunk.topology.sites[slot])


class EnsembleContender:
    """The stacked hosts. Germinates up to ``seeds`` a host, a slot an epoch; everything else happens by itself."""

    def __init__(self, keys: Sequence[int], seeds: int, horizon: int = 20) -> None:
        self.ensemble = Ensemble(identify(SET, keys), WorldConfig(set=SET, horizon=horizon))
        self._seeds = seeds
        self._totals = np.zeros((2, len(keys), SLOTS))

    def actions(self, number: int) -> NDArray[np.int16]:
        """All blueprints in every slot, in other combinations every few hosts."""
        rows = np.full((len(self.ensemble), len(HEADS)), -1, dtype=np.int16)
        rows[:, 0] = OP_INDEX[Op.WAIT]
        names = self.ensemble.blueprints
        for host in range(len(rows)) if number < self._seeds else ():
            key = self.ensemble.identities[host].key
            slot = (number + key // len(KINDS)) % SLOTS
            kind = KINDS[(key + slot * (1 + key // len(KINDS))) % len(KINDS)]
            rows[host] = (OP_INDEX[Op.GERMINATE], slot, names.index(kind), -1, -1, -1, key % 2)
        return rows

    def step(self, actions: NDArray[np.int16]) -> None:
        """Run the part that is timed: one epoch of training and the observation for the controller."""
        self.ensemble.step(actions)
        self.ensemble.observe()

    def cast(self) -> Cast:
        """Return the blueprint and alpha of every seed in the epoch just trained."""
        slots, names = self.ensemble.observe().slots, self.ensemble.blueprints
        known = np.array([*(KINDS.index(name) if name in KINDS else -1 for name in names), -1])
        return Cast(known[slots["blueprint"].astype(np.int64)].reshape(-1, SLOTS), slots["alpha"].reshape(-1, SLOTS))

    def shown(self, cast: Cast) -> Shown:
        """Return losses and accuracies of that epoch; the averages of contributions give back single measurements."""
        observed = self.ensemble.observe()
        system = {name: values.astype(np.float64) for name, values in observed.system.items()}
        average = observed.slots["contribution"].reshape(-1, SLOTS).astype(np.float64)
        active = cast.alpha > 0
        total, weight = self._totals
        newest = LifecycleConfig().contribution_weight
        before = (1.0 - newest) * total
        weight[active] = ((1.0 - newest) * weight + newest)[active]
        total[active] = (average * weight)[active]
        worth = np.where(active, (total - before) / newest, np.nan)
        accuracy = system["validation_accuracy"]
        return Shown(system["train_loss"], system["validation_loss"], accuracy, accuracy[:, None] - worth)


def sound_keys(count: int, seeds: int, epochs: int) -> list[int]:
    """The first keys whose hosts the governor lets live through so many epochs; no peer imitates it."""
    keys: list[int] = []
    while len(keys) < count:
        start = keys[-1] + 1 if keys else 0
        contender = EnsembleContender(range(start, start + count - len(keys) + 16), seeds)
        for number in range(epochs):
            contender.ensemble.step(contender.actions(number))
        keys += [start + int(row) for row in np.flatnonzero(~contender.ensemble.is_finished)]
    return keys[:count]


def validate(contender: EnsembleContender, *, leave_one_out: bool) -> Measurement:
    """A validation pass over hosts and the seeds they feel, with leave-one-out rows or without."""
    grown = contender.ensemble
    return grown._evaluate(DataSplit.VALIDATION, grown._slots["alpha"], leave_one_out=leave_one_out)
