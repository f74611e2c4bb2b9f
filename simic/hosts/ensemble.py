"""An ensemble: N hosts that train as one batch, each under its own actions.

Order of a step: actions at the boundary, gradient probe, one epoch of training, evaluation fused with
counterfactuals, governor, then records, gates and automatic transitions.
Shapes: N hosts, S slots, A heads, K blueprints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray

from simic.contracts.actions import Head, Op
from simic.contracts.batches import HEAD_INDEX, OP_INDEX, Masks, Observations
from simic.contracts.errors import ConfigError, ContractError
from simic.contracts.field_report import GovernorEvent
from simic.contracts.lifecycle import SeedStage, Trigger
from simic.contracts.settings.run import WorldConfig
from simic.contracts.state import HostIdentity
from simic.hosts import governor, transitions
from simic.hosts.action_masks import check_actions, legal_masks, why_refused
from simic.hosts.counterfactual import Attribution, attribute, coalitions, fold_contributions
from simic.hosts.factory import allowed_blueprints, make_host_batch, seed_sizes
from simic.hosts.host_sets import HostSet, host_set
from simic.hosts.interfaces import DataSplit, HostBatch, Measurement, Memory, SeedAssignment, TrainingRecord
from simic.hosts.lifecycle import Slots
from simic.hosts.observation import Readings, observe
from simic.hosts.plugins import blueprint_names

__all__ = ["Ensemble", "StepOutcome"]

Flags = NDArray[np.bool_]


class StepOutcome(NamedTuple):
    """Outcome of one step; absent numbers are NaN."""

    validation_accuracy_before: NDArray[np.float32]
    """[N]"""
    validation_accuracy_after: NDArray[np.float32]
    """[N]; on the last step that of the committed network."""
    validation_loss_before: NDArray[np.float32]
    """[N]"""
    validation_loss_after: NDArray[np.float32]
    """[N]; on the last step that of the committed network."""
    rent_parameters: NDArray[np.int64]
    """[N]: parameters of seeds alive or fossilised during the epoch."""
    committed_parameters: NDArray[np.int64]
    """[N]: parameters of fossilised seeds after the epoch."""
    terminated: Flags
    """[N]: the episode ended in this step."""
    live: Flags
    """[N]: the host took part in this step."""
    governor: list[GovernorEvent | None]
    mitigation: list[list[str]]
    seed_ids: list[str | None]
    """[N]: ``<slot>/<germination number>`` of the seed that the action addressed."""
    blueprint_ids: list[str | None]
    committed_validation_accuracy: NDArray[np.float32]
    """[N], on the last step."""
    test_accuracy: NDArray[np.float32]
    """[N], on the last step."""


class GivenHosts(NamedTuple):
    """Hosts that somebody else made, and the set that they belong to."""

    chosen: HostSet
    batch: HostBatch


class _Pending(NamedTuple):
    """What an epoch that has begun needs at its end."""

    live: Flags
    accuracy: NDArray[np.float32]
    """[N], before the epoch."""
    loss: NDArray[np.float32]
    """[N], before the epoch."""
    snapshot: Any
    rent: NDArray[np.int64]
    seed_ids: list[str | None]
    blueprint_ids: list[str | None]


class _Judged(NamedTuple):
    """What is known of an epoch before the committed networks are measured."""

    events: list[GovernorEvent | None]
    is_bad: Flags
    """[N]: the governor stopped the host."""
    terminated: Flags
    """[N]"""


class Ensemble:
    """N hosts; the history of each depends on its own key and actions alone, bit for bit."""

    def __init__(self, hosts: Sequence[HostIdentity], world: WorldConfig, given: GivenHosts | None = None) -> None:
        """Build the hosts of ``world.set``, or take those that are ``given``."""
        if not hosts:
            raise ConfigError("an ensemble needs at least one host")
        self.identities = tuple(hosts)
        self.world = world
        self.blueprints = blueprint_names()
        chosen = host_set(world.set) if given is None else given.chosen
        self._seeds_max = chosen.seeds_max
        self._keys: NDArray[np.int64] = np.array([host.key for host in hosts], dtype=np.int64)
        self._pending: _Pending | None = None
        self._judged: _Judged | None = None
        with _threads(world.threads):
            self._hosts: HostBatch = make_host_batch(hosts, chosen, world) if given is None else given.batch
            self._sane = allowed_blueprints(self._hosts, chosen, world.lifecycle)
            self._sizes = seed_sizes(self._hosts)
            n, slots = len(hosts), len(self._hosts.topology.sites)
            self._slots = Slots(n, slots)
            self._germinations = np.zeros((n, slots), dtype=np.int64)
            self._seed_is_finite = np.ones((n, slots), dtype=bool)
            self._epoch = np.zeros(n, dtype=np.int32)
            self._finished = np.zeros(n, dtype=bool)
            self._readings = Readings.empty(n, len(self._hosts.topology.kinds))
            first = self._evaluate(DataSplit.VALIDATION, self._slots["alpha"])
        _check_budget(self.memory().snapshot, world, n)
        self._birth_loss = first.loss
        self._best_accuracy = first.accuracy.copy()
        self._write_evaluation(np.ones(n, dtype=bool), first)

    def __len__(self) -> int:
        return len(self.identities)

    @property
    def is_finished(self) -> Flags:
        """Return bool [N]: the episode is over."""
        return self._finished.copy()

    def memory(self) -> Memory:
        """Return the bytes that the hosts occupy between steps, and those of the governor's snapshot."""
        return self._hosts.memory()

    def observe(self) -> Observations:
        """Return the present observations."""
        return observe(
            self._hosts, self._slots, self._readings, self._epoch, self.world.horizon, self._seeds_max, self.blueprints
        )

    def masks(self) -> Masks:
        """Return the present action masks."""
        return legal_masks(
            self._slots,
            self.world.lifecycle,
            live=~self._finished,
            seeds_max=self._seeds_max,
            is_finite=self._seed_is_finite,
            sane=self._sane,
        )

    def attribute(self) -> Attribution:
        """Return exact attributions of all active seeds, from one validation pass per coalition; changes nothing.

        Raises:
            ConfigError: if a host has more active seeds than ``counterfactual.PLAYERS_MAX``.
        """
        alpha = self._slots["alpha"]
        place = np.where(alpha > 0, np.cumsum(alpha > 0, axis=1) - 1, -1)
        worth = {}
        with _threads(self.world.threads):
            for chosen in coalitions(int(place.max(initial=-1)) + 1):
                mine = np.where(np.isin(place, chosen), alpha, np.float32(0.0))
                worth[chosen] = self._evaluate(DataSplit.VALIDATION, mine, leave_one_out=False).accuracy
        return attribute(worth, place)

    def check(self, actions: NDArray[np.int16]) -> None:
        """Raise IllegalActionError if one of ``actions`` int16 [N, A] is illegal."""
        slot_ptr = np.arange(len(self) + 1) * len(self._hosts.topology.sites)
        check_actions(actions, self.masks(), slot_ptr, self._keys, lambda host: self._refusal(actions[host], host))

    def step(self, actions: NDArray[np.int16]) -> StepOutcome:
        """Apply ``actions`` int16 [N, A], train one epoch and measure.

        Raises:
            IllegalActionError: if an action is illegal; nothing is changed then.
        """
        assignment = self.begin_epoch(actions)
        # A diverging host may overflow; the governor handles it, so NumPy need not warn.
        with _threads(self.world.threads), np.errstate(over="ignore", invalid="ignore"):
            record = self._hosts.train(assignment, self._epoch_of(~self._finished))
        return self.end_epoch(record)

    def begin_epoch(self, actions: NDArray[np.int16]) -> SeedAssignment:
        """Apply ``actions`` int16 [N, A] and return the seeds that take part in the training of one epoch.

        ``end_epoch`` must follow; ``step`` does both for hosts that train themselves.

        Raises:
            IllegalActionError: if an action is illegal; nothing is changed then.
        """
        self.check(actions)
        live = ~self._finished
        accuracy, loss = (column[:, -1].copy() for column in self._present())
        snapshot = self._hosts.snapshot()
        with _threads(self.world.threads), np.errstate(over="ignore", invalid="ignore"):
            self._act(actions)
            seed_ids, blueprint_ids = self._addressed(actions)
            rent = self._parameters(self._slots.is_paying)
            self._probe(live)
            transitions.move_alpha(self._slots, live)
        self._pending = _Pending(live, accuracy, loss, snapshot, rent, seed_ids, blueprint_ids)
        return self._roles(live, SeedStage.TRAINING)

    def end_epoch(self, record: TrainingRecord) -> StepOutcome:
        """Measure the hosts after an epoch of training, of which ``record`` tells, and return what the step did.

        After an error in a measurement, such as of memory that is used up, the same call may follow.
        """
        if self._pending is None:
            raise RuntimeError("end_epoch needs an epoch that begin_epoch began")
        live, accuracy, loss, snapshot, rent, seed_ids, blueprint_ids = self._pending
        with _threads(self.world.threads), np.errstate(over="ignore", invalid="ignore"):
            if self._judged is None:
                measured = self._evaluate(DataSplit.VALIDATION, self._slots["alpha"])
                events = self._judge(record, measured, live)
                is_bad = np.array([event is not None for event in events])
                self._record(live & ~is_bad, record, measured)
                self._roll_back(is_bad | ~live, is_bad, snapshot)
                self._epoch[live] += 1
                self._judged = _Judged(events, is_bad, live & (is_bad | (self._epoch >= self.world.horizon)))
            events, is_bad, terminated = self._judged
            committed, test = self._commit(terminated, is_bad)
        self._pending = self._judged = None
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

    def cut_off(self, where: Flags) -> None:
        """End the episodes of the hosts ``where`` [N] between two steps; what they would have kept is not measured."""
        self._finished |= where

    def state(self) -> dict[str, Any]:
        """Return arrays and lists that tell the state after ``begin_epoch``, without the tensors of the hosts.

        Raises:
            RuntimeError: if no epoch has begun.
        """
        if self._pending is None:
            raise RuntimeError("an ensemble is saved between begin_epoch and the training of that epoch")
        pending = self._pending._asdict()
        del pending["snapshot"], pending["live"]
        tables = {"slots": self._slots.columns, "readings": self._readings._asdict(), "own": self._own()}
        columns = {
            f"{table}.{name}": array.copy() for table, arrays in tables.items() for name, array in arrays.items()
        }
        return {**columns, **{f"pending.{name}": value for name, value in pending.items()}}

    def restore_state(self, state: Mapping[str, Any]) -> SeedAssignment:
        """Restore what ``state`` returned, for hosts that hold the same seeds; return the seeds that take part.

        An epoch whose end failed is forgotten.

        Raises:
            ContractError: if a column is missing or another one; nothing is changed then.
        """
        tables = {"slots": self._slots.columns, "readings": self._readings._asdict(), "own": self._own()}
        columns = {f"{table}.{name}": column for table, parts in tables.items() for name, column in parts.items()}
        names = [name for name in _Pending._fields if name not in ("live", "snapshot")]
        for name, column in columns.items():
            value = state.get(name)
            if not isinstance(value, np.ndarray) or (value.shape, value.dtype) != (column.shape, column.dtype):
                found = f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
                raise ContractError(f"state: expected {column.dtype} {column.shape} as {name}, found {found}")
        sizes = {name: np.shape(cast(Any, state.get(f"pending.{name}")))[:1] for name in names}
        if absent := [name for name, size in sizes.items() if size != (len(self),)]:
            raise ContractError(f"state: expected {len(self)} values of the epoch that has begun as {absent}")
        for name, column in columns.items():
            column[...] = state[name]
        live, self._judged = ~self._finished, None
        pending = {name: state[f"pending.{name}"] for name in names}
        self._pending = _Pending(live=live, snapshot=self._hosts.snapshot(), **pending)
        return self._roles(live, SeedStage.TRAINING)

    def _own(self) -> dict[str, NDArray[Any]]:
        names = ("germinations", "seed_is_finite", "epoch", "finished", "birth_loss", "best_accuracy")
        return {name: getattr(self, f"_{name}") for name in names}

    def _refusal(self, action: NDArray[np.int16], host: int) -> str:
        if self._finished[host]:
            return "its episode is over"
        rules, budget = self.world.lifecycle, self._seeds_max
        return why_refused(self._slots, rules, action, host, seeds_max=budget, is_finite=self._seed_is_finite)

    def _present(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        return self._readings.validation_accuracy, self._readings.validation_loss

    def _parameters(self, where: Flags) -> NDArray[np.int64]:
        total: NDArray[np.int64] = (self._slots["parameters"] * where).sum(axis=1, dtype=np.int64)
        return total

    def _act(self, actions: NDArray[np.int16]) -> None:
        germinated = transitions.apply_actions(self._slots, actions, self._sizes, self.world.prune_epochs)
        self._germinations += germinated
        for host, slot in np.argwhere(germinated).tolist():
            number, blueprint = int(self._germinations[host, slot]), int(self._slots["blueprint"][host, slot])
            self._hosts.germinate(host, slot, number, blueprint)

    def _addressed(self, actions: NDArray[np.int16]) -> tuple[list[str | None], list[str | None]]:
        seed_ids: list[str | None] = [None] * len(self)
        names: list[str | None] = [None] * len(self)
        for host in np.flatnonzero(actions[:, 0] != OP_INDEX[Op.WAIT]).tolist():
            slot = int(actions[host, HEAD_INDEX[Head.SLOT]])
            seed_ids[host] = f"{slot}/{self._germinations[host, slot]}"
            names[host] = self.blueprints[int(self._slots["blueprint"][host, slot])]
        return seed_ids, names

    def _roles(self, live: Flags, incubating: SeedStage) -> SeedAssignment:
        waiting = self._slots.is_in(incubating) & (self._slots["parameters"] > 0)
        alpha = np.where(live[:, None], self._slots["alpha"], np.float32(0.0))
        return SeedAssignment(self._slots["blueprint"], alpha, waiting & live[:, None])

    def _epoch_of(self, live: Flags) -> int:
        return int(self._epoch[live].max(initial=0))

    def _probe(self, live: Flags) -> None:
        if (self._slots.is_in(SeedStage.GERMINATED) & live[:, None]).any():
            norms = self._hosts.probe(self._roles(live, SeedStage.GERMINATED), self._epoch_of(live))
            transitions.pass_probe(self._slots, norms, live)

    def _evaluate(self, part: DataSplit, alpha: NDArray[np.float32], *, leave_one_out: bool = True) -> Measurement:
        assignment = SeedAssignment(self._slots["blueprint"], alpha, np.zeros(alpha.shape, dtype=bool))
        return self._hosts.evaluate(part, assignment, leave_one_out=leave_one_out)

    def _judge(self, record: TrainingRecord, measured: Measurement, live: Flags) -> list[GovernorEvent | None]:
        hosts_finite, self._seed_is_finite = self._hosts.is_finite()
        is_finite = hosts_finite & (self._seed_is_finite | ~self._slots.is_paying).all(axis=1)
        self._best_accuracy = np.fmax(self._best_accuracy, measured.accuracy)
        evidence = governor.Evidence(
            train_loss=record.loss,
            validation_loss=measured.loss,
            is_finite=is_finite,
            birth_loss=self._birth_loss,
            accuracy=measured.accuracy,
            best_accuracy=self._best_accuracy,
            largest_share=measured.largest_share,
            classes=self._hosts.topology.classes,
            is_loss_judged=self._hosts.topology.is_loss_judged,
        )
        events = governor.judge(evidence, self.world.governor)
        return [event if lives else None for event, lives in zip(events, live.tolist(), strict=True)]

    def _record(self, rows: Flags, record: TrainingRecord, measured: Measurement) -> None:
        """Record the measurements of healthy hosts, then apply their automatic transitions."""
        self._readings.shift(rows)
        self._readings.write(
            rows,
            train_loss=record.loss,
            train_accuracy=record.accuracy,
            gradient_norm=record.layer_gradient,
            train_samples=record.samples,
        )
        self._slots["gradient_norm"][rows] = record.seed_gradient[rows]
        self._slots["gradient_health"][rows] = record.seed_health[rows]
        self._write_evaluation(rows, measured)
        rules, accuracies = self.world.lifecycle, (measured.accuracy, measured.accuracy_without, measured.error_without)
        fold_contributions(self._slots, *accuracies, rows, rules.contribution_weight)
        entered = transitions.end_epoch(self._slots, rows, self._seed_is_finite, self._hosts.is_clear(), rules)
        if entered.any():
            self._hosts.clear(entered)

    def _write_evaluation(self, rows: Flags, measured: Measurement) -> None:
        self._readings.write(
            rows,
            validation_loss=measured.loss,
            validation_accuracy=measured.accuracy,
            activation_spread=measured.spread,
            effective_dimension=measured.dimension,
            weight_norm=self._hosts.weight_norms(),
        )
        self._slots["risk"][rows] = measured.risk[rows]

    def _roll_back(self, frozen: Flags, is_bad: Flags, snapshot: Any) -> None:
        """Undo the epoch of stopped and of finished hosts; stopped ones lose their live seeds and all momentum."""
        if not frozen.any():
            return
        self._hosts.restore(snapshot, frozen)
        if is_bad.any():
            self._hosts.clear_momentum(is_bad)
        alive = self._slots.is_alive & is_bad[:, None]
        if alive.any():
            self._slots.move(alive, Trigger.GOVERNOR)
            self._hosts.clear(alive)
        self._seed_is_finite[frozen] = True

    def _commit(self, terminated: Flags, is_bad: Flags) -> tuple[Measurement | None, Measurement | None]:
        """Measure the committed networks of episodes that end: fossilised seeds only."""
        if not terminated.any():
            return None, None
        kept = np.where(self._slots.is_in(SeedStage.FOSSILIZED), self._slots["alpha"], np.float32(0.0))
        committed = self._evaluate(DataSplit.VALIDATION, kept, leave_one_out=False)
        test = self._evaluate(DataSplit.TEST, kept, leave_one_out=False)
        if is_bad.any():
            self._readings.shift(is_bad)
            self._write_evaluation(is_bad, committed)
        return committed, test


def _only(rows: Flags, measured: Measurement | None) -> NDArray[np.float32]:
    if measured is None:
        return np.full(len(rows), np.nan, dtype=np.float32)
    return np.where(rows, measured.accuracy, np.nan).astype(np.float32)


def _check_budget(snapshot_bytes: int, world: WorldConfig, hosts: int) -> None:
    if snapshot_bytes > world.snapshot_mb * 2**20:
        raise ConfigError(
            f"the governor's snapshot of {hosts} hosts needs {snapshot_bytes / 2**20:.0f} MiB, world.snapshot_mb is "
            f"{world.snapshot_mb}; take a smaller world.chunk or a larger budget"
        )


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Set torch's thread count, and restore it afterwards."""
    before = torch.get_num_threads()
    if before == count:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
