"""The samples of N batched hosts, and the batches of an epoch. Test samples are built on request only.

Shapes: N hosts, T steps, B batch, D features, n seeds of a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.contracts.errors import DatasetError
from simic.contracts.state import HostIdentity
from simic.hosts import rng
from simic.hosts.batched.data import HostSamples, PoolOf, epoch_order, host_samples
from simic.hosts.batched.evaluation import VECTOR, EvaluationSet
from simic.hosts.batched.seeds import PackedSeeds
from simic.hosts.batched.sizes import BATCH, HIDDEN, SAMPLES, STEPS
from simic.hosts.batched.training import EpochBatches
from simic.hosts.batched.trunk import Trunk
from simic.hosts.interfaces import DataSplit, HostRecipe, Site
from simic.hosts.plugins import load_family
from simic.hosts.rng import Purpose

__all__ = ["HostDataset", "TrainingSet", "epoch_noise", "recipes_of"]

_DRAWS = 24
"""Uniform numbers that a family receives per host."""


def recipes_of(hosts: Sequence[HostIdentity]) -> list[HostRecipe]:
    """Return the recipes of hosts from their families and keys; raise DatasetError for an invalid one."""
    keys = np.array([host.key for host in hosts], dtype=np.int64)
    draws = rng.uniforms(rng.streams(keys, Purpose.RECIPE), _DRAWS)
    return [_checked(load_family(host.family).recipe(row), host) for host, row in zip(hosts, draws, strict=True)]


class TrainingSet(NamedTuple):
    """Training samples of all hosts; unused rows are zero and never shown."""

    inputs: Tensor
    """[N, 512, ...]"""
    labels: Tensor
    """int64 [N, 512]"""
    gains: tuple[Tensor | None, ...]
    """Per block: [N, 512, 1], or None where no host has one."""


class HostDataset:
    """Training, validation and test samples of N hosts."""

    def __init__(
        self, keys: NDArray[np.int64], recipes: Sequence[HostRecipe], trunk: Trunk, pool_of: PoolOf | None = None
    ) -> None:
        self.keys, self.recipes, self._trunk, self._pool_of = keys, recipes, trunk, pool_of
        samples = self._samples(DataSplit.TRAIN)
        self.sample_counts: NDArray[np.int64] = np.array([len(host.labels) for host in samples])
        """[N]: distinct training samples."""
        self.training = TrainingSet(*_stack(samples, SAMPLES), self._stacked_gains(samples, SAMPLES))
        self.validation = self._evaluation_set(DataSplit.VALIDATION)

    @property
    def nbytes(self) -> int:
        """Return the bytes of training and validation samples."""
        kept = (self.training, self.validation)
        gains = (gain for part in kept for gain in part.gains if gain is not None)
        return sum(tensor.nbytes for tensor in (*gains, *(x for part in kept for x in (part.inputs, part.labels))))

    def evaluation_set(self, part: DataSplit) -> EvaluationSet:
        """Return the validation or test samples."""
        return self.validation if part is DataSplit.VALIDATION else self._evaluation_set(part)

    def order(self, epoch: int) -> Tensor:
        """Return the sample order of an epoch as rows of all hosts' concatenated samples; int64 [T, N * B]."""
        hosts = len(self.keys)
        order = epoch_order(self.keys, self.sample_counts, epoch) + SAMPLES * np.arange(hosts)[:, None]
        return torch.from_numpy(order.reshape(hosts, STEPS, BATCH).swapaxes(0, 1).reshape(STEPS, -1).copy())

    def batches(self, epoch: int) -> EpochBatches:
        """Return the batches of an epoch, without noise."""
        hosts, rows = len(self.keys), self.order(epoch).view(-1)

        def pick(values: Tensor) -> Tensor:
            flat = values.view(-1, *values.shape[2:]).index_select(0, rows)
            return flat.view(STEPS, hosts, BATCH, *values.shape[2:])

        gains = tuple(None if gain is None else pick(gain) for gain in self.training.gains)
        labels = self.training.labels.view(-1).index_select(0, rows).view(STEPS, hosts, 1, BATCH)
        targets = (labels == torch.arange(self._trunk.topology.classes)[:, None]).float()
        return EpochBatches(pick(self.training.inputs), targets, gains, {}, self.sample_counts)

    def noise(self, packed: PackedSeeds, epoch: int) -> dict[tuple[int, int], Tensor]:
        """Return uniform noise for the groups of noisy blueprints, see ``EpochBatches.noise``."""
        wanted = [
            ((slot, index), group)
            for slot, slot_seeds in enumerate(packed.by_slot)
            if slot_seeds is not None
            for index, group in enumerate(slot_seeds.groups)
            if group.blueprint.is_noisy
        ]
        drawn = {}
        for (slot, index), group in wanted:
            values = epoch_noise(self.keys[group.hosts], slot, epoch, self._trunk.topology.sites[slot])
            drawn[slot, index] = torch.from_numpy(values.swapaxes(0, 1).copy())
        return drawn

    def _samples(self, part: DataSplit) -> list[HostSamples]:
        return [
            host_samples(int(key), recipe, part, self._trunk.inputs, self._pool_of)
            for key, recipe in zip(self.keys, self.recipes, strict=True)
        ]

    def _stacked_gains(self, samples: Sequence[HostSamples], rows: int) -> tuple[Tensor | None, ...]:
        """Per block [N, rows, 1]; 1 for hosts that scale nothing there, None if no host does."""
        gains: list[Tensor | None] = []
        for block in range(len(self._trunk.topology.sites) - 1):
            factor = np.ones((len(samples), rows, 1), dtype=np.float32)
            for row, host, recipe in zip(factor, samples, self.recipes, strict=True):
                if block in recipe.gain_blocks:
                    row[: len(host.log_gain), 0] = np.exp(recipe.gain_level + recipe.gain_spread * host.log_gain)
            has_any = any(block in recipe.gain_blocks for recipe in self.recipes)
            gains.append(torch.from_numpy(factor) if has_any else None)
        return tuple(gains)

    def _evaluation_set(self, part: DataSplit) -> EvaluationSet:
        samples = self._samples(part)
        valid = len(samples[0].labels)
        rows = -(-valid // VECTOR) * VECTOR
        inputs, labels = _stack(samples, rows)
        return EvaluationSet(inputs, labels, self._stacked_gains(samples, rows), valid)


def epoch_noise(keys: NDArray[np.int64], slot: int, epoch: int, site: Site) -> NDArray[np.float32]:
    """Return uniform noise in [0, 1) for the seeds of a slot, [n, T, B, D]."""
    draws = rng.bits(rng.streams(keys, Purpose.DROPOUT, epoch, slot), SAMPLES * site.width)
    values = (draws >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
    return values.reshape(-1, STEPS, BATCH, site.width)


def _stack(samples: Sequence[HostSamples], rows: int) -> tuple[Tensor, Tensor]:
    inputs = np.zeros((len(samples), rows, *samples[0].inputs.shape[1:]), dtype=np.float32)
    labels = np.zeros((len(samples), rows), dtype=np.int64)
    for index, host in enumerate(samples):
        inputs[index, : len(host.labels)], labels[index, : len(host.labels)] = host.inputs, host.labels
    return torch.from_numpy(inputs), torch.from_numpy(labels)


def _checked(recipe: HostRecipe, host: HostIdentity) -> HostRecipe:
    """Validate a recipe; families may come from other packages."""
    if not (1 <= recipe.samples <= SAMPLES and all(1 <= units <= HIDDEN for units in recipe.hidden)):
        raise DatasetError(
            f"family {host.family}, host {host.key}: needs 1 to {SAMPLES} samples and 1 to {HIDDEN} hidden units, "
            f"found {recipe.samples} and {recipe.hidden}"
        )
    causes = (recipe.decay, recipe.column_spread, recipe.imbalance)
    if not 0.0 <= recipe.distraction <= 1.0:
        raise DatasetError(
            f"family {host.family}, host {host.key}: needs a distraction from 0 to 1, found {recipe.distraction}"
        )
    has_scales = all(0.0 < value < np.inf for value in (recipe.rate, *recipe.layer_scales))
    if not (has_scales and all(0.0 <= value < np.inf for value in causes)):
        raise DatasetError(
            f"family {host.family}, host {host.key}: needs a positive rate and layer scales, and a decay, "
            f"column spread and imbalance of 0 or more, found {recipe.rate}, {recipe.layer_scales} and {causes}"
        )
    return recipe
