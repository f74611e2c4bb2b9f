"""N hosts that train together and are steered one by one.

Order of a step: actions at the boundary, gradient probe, one epoch of training, evaluation fused with
counterfactuals, governor, then records, gates and automatic moves.
Shapes: N hosts, S slots, A heads, K blueprints.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from simic.contracts.actions import Head, Op
from simic.contracts.batches import HEAD_INDEX, OP_INDEX, Masks, Observations
from simic.contracts.config import WorldConfig
from simic.contracts.errors import ConfigError
from simic.contracts.field_report import GovernorEvent
from simic.contracts.lifecycle import SeedStage, Trigger
from simic.contracts.state import HostIdentity
from simic.hosts import counter_rng, executor, gates, governor
from simic.hosts.anatomy import CLASSES, SLOTS, WIDTH
from simic.hosts.catalogue import blueprint_names, load_blueprint
from simic.hosts.cohort import Cohort
from simic.hosts.counter_rng import Purpose
from simic.hosts.counterfactual import fold_contributions
from simic.hosts.evaluation import EvaluationSet, Measurement, evaluate
from simic.hosts.growth import Roles, gather, scatter
from simic.hosts.keys import host_set
from simic.hosts.legality import check_actions, legal_masks
from simic.hosts.lifecycle import Slots
from simic.hosts.observing import Readings, observe, weight_norms
from simic.hosts.protocols import Blueprint
from simic.hosts.training import EpochBatches, TrainingRecord, probe_seeds, train_epoch
from simic.hosts.weights import HostWeights, SeedStore, birth_of_hosts, birth_of_seed

__all__ = ["Ensemble", "StepOutcome"]

Flags = NDArray[np.bool_]


class StepOutcome(NamedTuple):
    """What one step did; absent numbers are NaN."""

    validation_accuracy_before: NDArray[np.float32]
    """[N]"""
    validation_accuracy_after: NDArray[np.float32]
    """[N]; on the last step of the network to be kept."""
    validation_loss_before: NDArray[np.float32]
    """[N]"""
    validation_loss_after: NDArray[np.float32]
    """[N]; likewise."""
    rent_parameters: NDArray[np.int64]
    """[N]: of seeds alive or kept during the epoch."""
    committed_parameters: NDArray[np.int64]
    """[N]: of seeds kept, after it."""
    terminated: Flags
    """[N]: the episode ended in this step."""
    live: Flags
    """[N]: the host took part in this step."""
    governor: list[GovernorEvent | None]
    mitigation: list[list[str]]
    seed_ids: list[str | None]
    """``<slot>/<germination number>`` of the seed the action addressed."""
    blueprint_ids: list[str | None]
    committed_validation_accuracy: NDArray[np.float32]
    """[N], on the last step."""
    test_accuracy: NDArray[np.float32]
    """[N], on the last step."""


class _Snapshot(NamedTuple):
    """The last good state, on the CPU; there is never more than one."""

    weights: HostWeights
    momentum: HostWeights
    seeds: SeedStore


class Ensemble:
    """Batched hosts; host i's history depends on its own key and actions alone, bit for bit."""

    def __init__(self, hosts: Sequence[HostIdentity], world: WorldConfig) -> None:
        if not hosts:
            raise ConfigError("an ensemble needs at least one host")
        self.identities = tuple(hosts)
        self.world = world
        self.blueprints = blueprint_names()
        self._blueprints: list[Blueprint] = [load_blueprint(name) for name in self.blueprints]
        self._sizes = np.array([blueprint.parameters for blueprint in self._blueprints], dtype=np.int32)
        self._sane = np.array([_is_sane(blueprint) for blueprint in self._blueprints])
        self._seeds_max = host_set(world.set).seeds_max
        self._cohort = Cohort(hosts)
        n = len(hosts)
        self._weights = birth_of_hosts(self._cohort.keys, self._cohort.hidden)
        self._momentum = HostWeights.zeros(n)
        self._seeds = SeedStore.zeros(n, max(1, int(self._sizes.max())))
        self._slots = Slots(n, SLOTS)
        self._germinations = np.zeros((n, SLOTS), dtype=np.int64)
        self._seed_is_finite = np.ones((n, SLOTS), dtype=bool)
        self._epoch = np.zeros(n, dtype=np.int32)
        self._finished = np.zeros(n, dtype=bool)
        self._readings = Readings.empty(n)
        with _threads(world.threads):
            first = self._evaluate(self._cohort.validation, self._slots["alpha"])
        self._birth_loss = first.loss
        self._write_evaluation(np.ones(n, dtype=bool), first)

    def __len__(self) -> int:
        return len(self.identities)

    @property
    def is_finished(self) -> Flags:
        """[N]: the episode is over."""
        return self._finished.copy()

    def observe(self) -> Observations:
        """What a controller may know now."""
        return observe(
            self._cohort, self._slots, self._readings, self._epoch, self.world.horizon, self._seeds_max, self.blueprints
        )

    def masks(self) -> Masks:
        """What is legal now."""
        return legal_masks(
            self._slots,
            live=~self._finished,
            seeds_max=self._seeds_max,
            is_finite=self._seed_is_finite,
            sane=self._sane,
        )

    def step(self, actions: NDArray[np.int16]) -> StepOutcome:
        """Act, train one epoch and measure; illegal ``actions`` [N, A] raise IllegalAction and change nothing."""
        check_actions(actions, self.masks(), self._cohort.keys)
        live = ~self._finished
        accuracy, loss = (column[:, -1].copy() for column in self._present())
        snapshot = self._snapshot()
        # A diverging host may overflow; the governor, not a warning, deals with what comes of it.
        with _threads(self.world.threads), np.errstate(over="ignore", invalid="ignore"):
            self._act(actions)
            seed_ids, blueprint_ids = self._addressed(actions)
            rent = self._parameters(self._slots.is_paying)
            record = self._train(live)
            measured = self._evaluate(self._cohort.validation, self._slots["alpha"])
            events = self._judge(record, measured, live)
            is_bad = np.array([event is not None for event in events])
            self._record(live & ~is_bad, record, measured)
            self._roll_back(is_bad | ~live, is_bad, snapshot)
            self._epoch[live] += 1
            terminated = live & (is_bad | (self._epoch >= self.world.horizon))
            committed, test = self._commit(terminated, is_bad)
        self._finished |= terminated
        after = [column[:, -1].copy() for column in self._present()]
        if committed is not None:
            after[0][terminated] = committed.accuracy[terminated]
            after[1][terminated] = committed.loss[terminated]
        return StepOutcome(
            validation_accuracy_before=accuracy,
            validation_accuracy_after=after[0],
            validation_loss_before=loss,
            validation_loss_after=after[1],
            rent_parameters=rent,
            committed_parameters=self._parameters(self._slots.is_in(SeedStage.FOSSILIZED)),
            terminated=terminated,
            live=live,
            governor=events,
            mitigation=[[] if event is None else list(governor.MITIGATION) for event in events],
            seed_ids=seed_ids,
            blueprint_ids=blueprint_ids,
            committed_validation_accuracy=_only(terminated, committed),
            test_accuracy=_only(terminated, test),
        )

    def _present(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        return self._readings.validation_accuracy, self._readings.validation_loss

    def _parameters(self, where: Flags) -> NDArray[np.int64]:
        total: NDArray[np.int64] = (self._slots["parameters"] * where).sum(axis=1, dtype=np.int64)
        return total

    def _snapshot(self) -> _Snapshot:
        n = len(self)
        return _Snapshot(
            HostWeights.view_of(self._weights.flat.clone(), n),
            HostWeights.view_of(self._momentum.flat.clone(), n),
            SeedStore(self._seeds.parameters.clone(), self._seeds.momentum.clone()),
        )

    def _act(self, actions: NDArray[np.int16]) -> None:
        germinated = executor.apply_actions(self._slots, actions, self._sizes)
        self._germinations += germinated
        for host, slot in np.argwhere(germinated).tolist():
            blueprint = self._blueprints[int(self._slots["blueprint"][host, slot])]
            key, number = int(self._cohort.keys[host]), int(self._germinations[host, slot])
            born = birth_of_seed(key, slot, number, blueprint)
            self._seeds.parameters[host, slot, : len(born)] = born
            self._seeds.momentum[host, slot] = 0.0

    def _addressed(self, actions: NDArray[np.int16]) -> tuple[list[str | None], list[str | None]]:
        seed_ids: list[str | None] = [None] * len(self)
        names: list[str | None] = [None] * len(self)
        for host in np.flatnonzero(actions[:, 0] != OP_INDEX[Op.WAIT]).tolist():
            slot = int(actions[host, HEAD_INDEX[Head.SLOT]])
            seed_ids[host] = f"{slot}/{self._germinations[host, slot]}"
            names[host] = self.blueprints[int(self._slots["blueprint"][host, slot])]
        return seed_ids, names

    def _roles(self, live: Flags, incubating: SeedStage) -> Roles:
        waiting = self._slots.is_in(incubating) & (self._slots["parameters"] > 0)
        alpha = np.where(live[:, None], self._slots["alpha"], np.float32(0.0))
        return Roles(self._slots["blueprint"], alpha, waiting & live[:, None])

    def _train(self, live: Flags) -> TrainingRecord:
        batches = self._cohort.batches(int(self._epoch[live].max(initial=0)))
        self._probe(live, batches)
        executor.move_alpha(self._slots, live)
        growth = gather(self._seeds, self._roles(live, SeedStage.TRAINING), self._blueprints, in_training=True)
        batches = batches._replace(noise=self._cohort.noise(growth, int(self._epoch[live].max(initial=0))))
        record = train_epoch(self._weights, self._momentum, growth, batches)
        scatter(growth, self._seeds)
        return record

    def _probe(self, live: Flags, batches: EpochBatches) -> None:
        if not (self._slots.is_in(SeedStage.GERMINATED) & live[:, None]).any():
            return
        roles = self._roles(live, SeedStage.GERMINATED)
        growth = gather(
            self._seeds, roles._replace(alpha=np.zeros_like(roles.alpha)), self._blueprints, in_training=True
        )
        executor.pass_probe(self._slots, probe_seeds(self._weights, growth, batches), live)

    def _evaluate(self, data: EvaluationSet, alpha: NDArray[np.float32]) -> Measurement:
        roles = Roles(self._slots["blueprint"], alpha, np.zeros_like(self._finished[:, None] & (alpha > 0)))
        return evaluate(self._weights, gather(self._seeds, roles, self._blueprints, in_training=False), data)

    def _judge(self, record: TrainingRecord, measured: Measurement, live: Flags) -> list[GovernorEvent | None]:
        hosts_finite, self._seed_is_finite = _finite(self._weights, self._momentum, self._seeds)
        is_finite = hosts_finite & (self._seed_is_finite | ~self._slots.is_paying).all(axis=1)
        evidence = governor.Evidence(record.loss, measured.loss, is_finite, self._birth_loss, CLASSES)
        return [event if lives else None for event, lives in zip(governor.judge(evidence), live.tolist(), strict=True)]

    def _record(self, rows: Flags, record: TrainingRecord, measured: Measurement) -> None:
        """Write down what healthy hosts showed, then let their slots move on."""
        self._readings.shift(rows)
        self._readings.write(
            rows, train_loss=record.loss, train_accuracy=record.accuracy, gradient_norm=record.layer_gradient
        )
        self._slots["gradient_norm"][rows] = record.seed_gradient[rows]
        self._slots["gradient_health"][rows] = record.seed_health[rows]
        self._write_evaluation(rows, measured)
        fold_contributions(self._slots, measured.accuracy, measured.accuracy_without, rows)
        entered = executor.end_epoch(self._slots, rows, self._seed_is_finite, self._seeds.is_clear())
        if entered.any():
            self._seeds.clear(entered)

    def _write_evaluation(self, rows: Flags, measured: Measurement) -> None:
        self._readings.write(
            rows,
            validation_loss=measured.loss,
            validation_accuracy=measured.accuracy,
            activation_spread=measured.spread,
            weight_norm=weight_norms(self._weights),
        )
        self._slots["risk"][rows] = measured.risk[rows]

    def _roll_back(self, frozen: Flags, is_bad: Flags, snapshot: _Snapshot) -> None:
        """Undo the epoch of stopped and of finished hosts; prune the live seeds of the former."""
        if not frozen.any():
            return
        rows = torch.from_numpy(np.flatnonzero(frozen))
        self._weights.restore(snapshot.weights, rows)
        self._momentum.restore(snapshot.momentum, rows)
        for mine, theirs in zip(self._seeds, snapshot.seeds, strict=True):
            mine[rows] = theirs[rows]
        alive = self._slots.is_alive & is_bad[:, None]
        if alive.any():
            self._slots.move(alive, Trigger.GOVERNOR)
        self._seed_is_finite[frozen] = True

    def _commit(self, terminated: Flags, is_bad: Flags) -> tuple[Measurement | None, Measurement | None]:
        """Measure the networks to be kept, where episodes end."""
        if not terminated.any():
            return None, None
        kept = np.where(self._slots.is_in(SeedStage.FOSSILIZED), self._slots["alpha"], np.float32(0.0))
        committed = self._evaluate(self._cohort.validation, kept)
        if is_bad.any():
            self._readings.shift(is_bad)
            self._write_evaluation(is_bad, committed)
        return committed, self._evaluate(self._cohort.test(), kept)


def _only(rows: Flags, measured: Measurement | None) -> NDArray[np.float32]:
    if measured is None:
        return np.full(len(rows), np.nan, dtype=np.float32)
    return np.where(rows, measured.accuracy, np.nan).astype(np.float32)


def _finite(weights: HostWeights, momentum: HostWeights, seeds: SeedStore) -> tuple[Flags, Flags]:
    """Which hosts [N] and seeds [N, S] are finite; looked at one by one only if a grand total is not."""
    hosts, slots = seeds.parameters.shape[:2]
    host_good, seed_good = np.ones(hosts, dtype=bool), np.ones((hosts, slots), dtype=bool)
    for kind in (weights, momentum):
        if not torch.isfinite(kind.flat.sum()):
            for part in kind.segments:
                host_good &= part.isfinite().view(hosts, -1).all(dim=1).numpy()
    for store in seeds:
        if not torch.isfinite(store.sum()):
            seed_good &= store.isfinite().all(dim=2).numpy()
    return host_good, seed_good


def _is_sane(blueprint: Blueprint) -> bool:
    """Judge G0 on a seed at birth."""
    draws = counter_rng.normals(counter_rng.streams([0, 1], Purpose.SANITY), max(blueprint.parameters, 32 * WIDTH))
    values = torch.from_numpy(draws)
    h = values[:, : 32 * WIDTH].reshape(2, 32, WIDTH)
    with torch.no_grad():
        delta = blueprint.delta(blueprint.birth(values[:, : blueprint.parameters]), h, None)
    verdict = gates.is_sane(is_known=True, keeps_shape=delta.shape == h.shape, birth_deviation=float(delta.abs().max()))
    return bool(verdict.passed)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Use so many threads and leave the process as it was."""
    before = torch.get_num_threads()
    if before == count:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
