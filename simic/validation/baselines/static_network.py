"""The static rival: the network that a controller ended with, trained from the start without growing.

The seeds that were kept are born at epoch 0 as they were born in the episode and take full effect at once, at the alpha
that they were kept with. Data, order of samples, governor and reward are those of the episode.

There are two rivals. One trains for the epochs of an episode. The other trains for the compute of the episode:
``floor((h H + s) / (h + p))`` epochs, with h parameters of the host, H epochs of an episode, s parameters of seeds
summed over the epochs of the episode, and p parameters of kept seeds. That is fewer epochs than H if seeds came late,
and more if much was grown that was not kept. Shapes: N hosts, S slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.contracts.rewards import RewardConfig
from simic.contracts.settings.lifecycle import GovernorConfig
from simic.contracts.settings.run import WorldConfig
from simic.contracts.state import HostIdentity
from simic.hosts import governor
from simic.hosts.factory import make_host_batch, seed_sizes
from simic.hosts.host_sets import host_set
from simic.hosts.interfaces import DataSplit, HostBatch, SeedAssignment, TrainingRecord
from simic.hosts.plugins import blueprint_names
from simic.numerics.rewards import basic_rewards
from simic.runtime.process_pool import run_jobs, worker_count
from simic.validation.episodes import Episodes, KeptSeed
from simic.validation.host_sizes import host_sizes

__all__ = ["SAME", "Rival", "StaticJob", "grow_rivals", "grow_static"]

SAME: Final[tuple[Literal["epochs", "compute"], ...]] = ("epochs", "compute")
"""What the rivals of ``grow_rivals`` share with the episodes, in their order."""
_READINGS = ("validation_accuracy", "test_accuracy", "epochs")


class Rival(NamedTuple):
    """Static networks after their training, one entry per host."""

    returns: NDArray[np.float64]
    """Points by the reward of the episodes; the rent is that of all kept seeds in every epoch."""
    validation_accuracy: NDArray[np.float64]
    test_accuracy: NDArray[np.float64]
    epochs: NDArray[np.int64]
    """Epochs trained; fewer than planned where the governor stopped the host."""
    panicked: NDArray[np.bool_]


@dataclass(frozen=True)
class StaticJob:
    """Hosts of one layout with the seeds to begin with; plain data that another process can take."""

    hosts: tuple[HostIdentity, ...]
    kept: tuple[tuple[KeptSeed, ...], ...]
    """Per host."""
    epochs: tuple[tuple[int, ...], ...]
    """Per rival and host: epochs to train."""
    world: WorldConfig
    reward: RewardConfig


def grow_rivals(
    hosts: Sequence[HostIdentity],
    episodes: Episodes,
    world: WorldConfig,
    reward: RewardConfig,
    on_done: Callable[[int], None] = lambda _hosts: None,
) -> tuple[Rival, Rival]:
    """Return the rivals of finished ``episodes`` on ``hosts``: trained for the same epochs, and for the same compute.

    ``on_done`` receives the number of hosts of each finished job.
    """
    sizes = host_sizes(hosts, world).parameters
    compute = sizes * world.horizon + episodes.seed_epochs
    plans = np.stack([np.full(len(hosts), world.horizon), compute // (sizes + episodes.committed_parameters)])
    parts = list(_rows(hosts, world))
    jobs = [
        StaticJob(
            tuple(hosts[row] for row in rows),
            tuple(episodes.kept[row] for row in rows),
            tuple(tuple(plan[rows].tolist()) for plan in plans),
            world,
            reward,
        )
        for rows in parts
    ]
    done = run_jobs(grow_static, jobs, worker_count(world.processes), lambda rivals: on_done(len(rivals[0].returns)))
    order = np.argsort(np.concatenate(parts))
    first, second = (
        Rival(*(np.concatenate(columns)[order] for columns in zip(*(part[which] for part in done), strict=True)))
        for which in range(len(plans))
    )
    return first, second


def _rows(hosts: Sequence[HostIdentity], world: WorldConfig) -> Iterator[list[int]]:
    """Yield the rows of hosts that one batch can hold: of one family if families differ in their layers."""
    is_mixed = host_set(world.set).is_mixed
    groups: dict[str, list[int]] = {}
    for row, host in enumerate(hosts):
        groups.setdefault(host.family if is_mixed else "", []).append(row)
    for rows in groups.values():
        yield from (rows[start : start + world.chunk] for start in range(0, len(rows), world.chunk))


def grow_static(job: StaticJob) -> list[Rival]:
    """Train the hosts of a job to the last planned epoch and return one entry per rival."""
    plans = np.array(job.epochs, dtype=np.int64)
    batch = make_host_batch(job.hosts, host_set(job.world.set), job.world)
    nothing = np.zeros((len(job.hosts), len(batch.topology.sites)))
    empty = _assignment(nothing - 1, nothing)
    start = batch.evaluate(DataSplit.VALIDATION, empty, leave_one_out=False)
    network, parameters = _plant(batch, job.kept)
    watch = _Governor(batch, network, start.loss, start.accuracy, job.world.governor)
    readings = {name: np.full(plans.shape, np.nan) for name in _READINGS}
    for epoch in range(int(plans.max())):
        stops = watch.train(epoch)
        due = ((plans == epoch + 1) & ~watch.is_stopped) | (stops & (plans > epoch))
        if due.any():
            for part, name in ((DataSplit.VALIDATION, _READINGS[0]), (DataSplit.TEST, _READINGS[1])):
                measured = batch.evaluate(part, network, leave_one_out=False).accuracy
                readings[name][due] = np.broadcast_to(measured, plans.shape)[due]
            readings["epochs"][due] = epoch + 1
    return [_rival(job, row, readings, start.accuracy, parameters, watch.stopped_in) for row in range(len(plans))]


def _rival(
    job: StaticJob,
    row: int,
    readings: dict[str, NDArray[np.float64]],
    begun: NDArray[np.float64],
    parameters: NDArray[np.int64],
    stopped_in: NDArray[np.int64],
) -> Rival:
    validation, test, epochs = (readings[name][row] for name in _READINGS)
    trained = epochs.astype(np.int64)
    panicked = (stopped_in > 0) & (stopped_in <= np.array(job.epochs[row]))
    returns = basic_rewards(
        job.reward,
        horizon=job.world.horizon,
        # Measured in single precision, as in the outcomes of an ensemble.
        accuracy_before=begun.astype(np.float32),
        accuracy_after=validation.astype(np.float32),
        rent_parameters=parameters * trained,
        governor=panicked,
    )
    return Rival(returns, validation, test, trained, panicked)


def _plant(batch: HostBatch, kept: Sequence[Sequence[KeptSeed]]) -> tuple[SeedAssignment, NDArray[np.int64]]:
    """Germinate all seeds; return the network that they make, and their parameters [N]."""
    names, sizes = {name: index for index, name in enumerate(blueprint_names())}, seed_sizes(batch)
    blueprint = np.full((len(kept), len(batch.topology.sites)), -1)
    alpha, parameters = np.zeros(blueprint.shape), np.zeros(len(kept), dtype=np.int64)
    for host, seeds in enumerate(kept):
        for seed in seeds:
            index = names[seed.blueprint]
            batch.germinate(host, seed.slot, seed.number, index)
            blueprint[host, seed.slot], alpha[host, seed.slot] = index, seed.alpha
            parameters[host] += sizes[seed.slot, index]
    return _assignment(blueprint, alpha), parameters


def _assignment(blueprint: NDArray[np.float64] | NDArray[np.int64], alpha: NDArray[np.float64]) -> SeedAssignment:
    return SeedAssignment(blueprint.astype(np.int16), alpha.astype(np.float32), np.zeros(alpha.shape, dtype=np.bool_))


class _Governor:
    """Trains a network and stops hosts as an ensemble does: their last epoch is undone, and they train no more."""

    def __init__(
        self,
        batch: HostBatch,
        network: SeedAssignment,
        loss: NDArray[np.float64],
        accuracy: NDArray[np.float64],
        bounds: GovernorConfig,
    ) -> None:
        self._batch, self._network, self._bounds = batch, network, bounds
        self._birth_loss, self._best = loss, accuracy.copy()
        self.stopped_in: NDArray[np.int64] = np.zeros(len(loss), dtype=np.int64)
        """[N]: epoch, counted from 1, in which a host was stopped; 0 if it was not."""

    @property
    def is_stopped(self) -> NDArray[np.bool_]:
        """Return bool [N]."""
        return self.stopped_in > 0

    def train(self, epoch: int) -> NDArray[np.bool_]:
        """Train one epoch; return bool [N], the hosts that were stopped in it."""
        snapshot = self._batch.snapshot()
        # A diverging host may overflow; it is stopped, so NumPy need not warn.
        with np.errstate(over="ignore", invalid="ignore"):
            bad = self._judge(self._batch.train(self._network, epoch)) & ~self.is_stopped
        self.stopped_in[bad] = epoch + 1
        if self.is_stopped.any():
            self._batch.restore(snapshot, self.is_stopped)
        return bad

    def _judge(self, record: TrainingRecord) -> NDArray[np.bool_]:
        measured = self._batch.evaluate(DataSplit.VALIDATION, self._network, leave_one_out=False)
        hosts_finite, seeds_finite = self._batch.is_finite()
        self._best = np.fmax(self._best, measured.accuracy)
        events = governor.judge(
            governor.Evidence(
                train_loss=record.loss,
                validation_loss=measured.loss,
                is_finite=hosts_finite & (seeds_finite | (self._network.alpha == 0)).all(axis=1),
                birth_loss=self._birth_loss,
                accuracy=measured.accuracy,
                best_accuracy=self._best,
                largest_share=measured.largest_share,
                classes=self._batch.topology.classes,
            ),
            self._bounds,
        )
        return np.array([event is not None for event in events])
