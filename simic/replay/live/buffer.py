"""Experience as it arrives: bounded in steps, seconds and bytes, drawn by priority, whole sequences throughout.

Sequences are appended to an arena and never change; what is live is a view over it, one row of arrays per sequence.
A sequence is known by an id that is never given twice, so a priority for one that has left meanwhile finds nobody
instead of its successor.
Shapes: E sequences, B sequences of a draw.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.contracts.config import ReplayConfig
from simic.contracts.errors import ConfigError, ContractError
from simic.replay.batch import ColumnarExperience, SequenceBatch, SequenceSpans, assemble
from simic.replay.dataset import GraphDataset
from simic.replay.live.prioritised import Prioritisation, PrioritisedSampler, refuse_unless_weights
from simic.replay.live.storage import CAUSES, ROWS, Chunk, ColumnStore, SequenceTable, chunk_of, counts_of
from simic.runtime.clock import Clock
from simic.runtime.seeds import generator
from simic.runtime.telemetry import MetricSink, NullSink

__all__ = ["LiveBuffer", "Sample"]

Ids = NDArray[np.int64]

_MIB = 1 << 20
_CHUNKS = 8
"""Experience arrives in pieces of at most this part of the capacity, so that what it displaces leaves bit by bit."""


class Sample(NamedTuple):
    """Drawn sequences, ready to learn from."""

    ids: Ids
    """[B]: for ``update``."""
    weights: NDArray[np.float32]
    """[B] in (0, 1]: how much each may count."""
    batch: SequenceBatch


class LiveBuffer:
    """Bounded replay of whole sequences. ``conservative`` draws uniformly, while priorities are kept for later.

    What must go to make room goes oldest first, and among the rest those that have been drawn before those that have
    not. Age takes everything.
    """

    def __init__(self, config: ReplayConfig, *, seed: int, clock: Clock, sink: MetricSink | None = None) -> None:
        self._config, self._clock, self._sink = config, clock, sink or NullSink()
        self._sequences = SequenceTable(config.capacity)
        settings = Prioritisation(config.alpha, config.beta, config.eps, config.anneal_draws, config.max_decay)
        self._priorities = PrioritisedSampler(config.capacity, seed=seed, settings=settings)
        self._uniform = generator(seed, "uniform")
        self._columns: ColumnStore | None = None
        self._blueprints: tuple[str, ...] | None = None
        self._draws = 0
        self.conservative = False
        """Whether draws disregard priorities."""
        if self.size_bytes > self._budget_bytes:
            raise ConfigError(
                f"replay.max_mb {config.max_mb} does not even hold the bookkeeping of {config.capacity} steps, "
                f"{self.size_bytes / _MIB:.0f} MiB: raise it or lower replay.capacity"
            )

    def __len__(self) -> int:
        """Sequences held."""
        return len(self._sequences)

    @property
    def steps(self) -> int:
        """Return the number of steps in the buffer."""
        return self._sequences.steps

    @property
    def size_bytes(self) -> int:
        """Return the allocated bytes of all arrays."""
        return self._fixed_bytes + (0 if self._columns is None else self._columns.size_bytes)

    @property
    def ids(self) -> Ids:
        """Return the ids of the sequences in the buffer, oldest first."""
        return self._sequences.ids()

    @property
    def evicted(self) -> dict[str, int]:
        """Sequences that have left, by cause: ttl, capacity, bytes; ``unseen`` of all these were never drawn."""
        return dict(self._sequences.evicted)

    @property
    def stale_updates(self) -> int:
        """Priorities that came for sequences which had left."""
        return self._sequences.stale

    def extend(self, store: GraphDataset) -> Ids:
        """Copy every sequence of ``store`` in, and return their ids in its order; those that left again are gone.

        Raises ContractError for a sequence that alone is more than the buffer may hold, and for a store whose
        blueprints are not those of the first; nothing has left for it then but what was too old.
        """
        if self._blueprints not in (None, store.blueprints):
            raise ContractError(
                f"the buffer holds experience with blueprints {self._blueprints}, the store has {store.blueprints}: "
                "one buffer takes one vocabulary"
            )
        self.expire()
        lengths = store.sequences.lengths
        if len(lengths) and int(lengths.max()) > self._config.capacity:
            raise ContractError(
                f"a sequence of {int(lengths.max())} steps does not fit into replay.capacity {self._config.capacity}"
            )
        chunks = _chunks(lengths, self._config.capacity)
        self._refuse_unless_each_fits(store, chunks)
        self._blueprints = store.blueprints
        ids = [self._append(store, chosen) for chosen in chunks]
        self._tell()
        return np.concatenate(ids) if ids else np.zeros(0, dtype=np.int64)

    def expire(self) -> int:
        """Let go of what is older than ``ttl_s`` now; the number of sequences that left."""
        gone = self._sequences.older_than(self._clock().timestamp() - self._config.ttl_s)
        self._leave(gone, "ttl")
        if len(gone):
            self._tell()
        return len(gone)

    def draw(self, count: int) -> tuple[Ids, NDArray[np.float32]]:
        """``count`` ids, with replacement, and their weights; ContractError if nothing is held."""
        self.expire()
        if not len(self._sequences):
            raise ContractError("the live buffer is empty: add experience before drawing from it")
        if self.conservative:
            held = self._sequences.slots()
            slots, weights = held[self._uniform.integers(len(held), size=count)], np.ones(count, dtype=np.float32)
        else:
            slots, weights = self._priorities.draw(count)
        self._sequences.mark_seen(slots)
        return self._sequences.ids_at(slots), weights

    def batch(self, ids: Ids) -> SequenceBatch:
        """The sequences ``ids``, in that order; ContractError if one has left."""
        if self._columns is None or not self._sequences.holds(ids).all():
            raise ContractError("a sequence has left the buffer since it was drawn: draw again")
        slots = self._sequences.slots_of(ids)
        firsts, lengths = self._sequences.firsts[slots], self._sequences.lengths[slots]
        flat = ColumnarExperience.of(self._columns.arrays())
        return assemble(ids, SequenceSpans(firsts, lengths, firsts + lengths), flat.steps, flat.masks, flat.table)

    def sample(self, count: int) -> Sample:
        """Draw and assemble; what it took is told as ``simic.sampling.batch_time_ms``."""
        started = self._clock()
        ids, weights = self.draw(count)
        batch = self.batch(ids)
        self._draws += 1
        took_ms = 1e3 * (self._clock() - started).total_seconds()
        self._sink.log(self._draws, {"simic.sampling.batch_time_ms": took_ms})
        return Sample(ids, weights, batch)

    def update(self, ids: Ids, magnitudes: NDArray[np.float64]) -> int:
        """New magnitudes [B] of what was drawn; the number whose sequence has left, which are counted and dropped.

        Refuses NaN, infinite and negative ones with a ContractError, and changes nothing then.
        """
        if ids.shape != magnitudes.shape:
            raise ContractError(f"{ids.shape} ids but {magnitudes.shape} magnitudes")
        refuse_unless_weights(magnitudes)
        held = self._sequences.holds(ids)
        self._priorities.update(self._sequences.slots_of(ids[held]), magnitudes[held])
        stale = int(len(ids) - held.sum())
        self._sequences.stale += stale
        return stale

    def probabilities(self) -> NDArray[np.float64]:
        """Return the probability of each of ``ids`` in one prioritised draw."""
        out: NDArray[np.float64] = self._priorities.probabilities()[self._sequences.slots()]
        return out

    def get_state(self) -> dict[str, Any]:
        """Arrays and plain JSON, nested: what is held, its priorities, every generator and counter.

        The living are moved together first: whoever goes on from the state then has the same room, and lets go of the
        same sequences when the bytes run out.
        """
        if self._columns is not None:
            self._compact(self._columns)
        slots = self._sequences.slots()
        held = (
            None
            if self._columns is None
            else self._columns.export(self._sequences.firsts[slots], self._sequences.lengths[slots])
        )
        return {
            "roster": self._sequences.get_state(),
            "priorities": self._priorities.get_state(),
            "uniform": json.loads(json.dumps(self._uniform.bit_generator.state)),
            "draws": self._draws,
            "conservative": self.conservative,
            "blueprints": None if self._blueprints is None else list(self._blueprints),
            "experience": None if held is None else held.arrays,
            "allocated": None if self._columns is None else self._columns.allocated(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on where ``get_state`` was called: the same draws and evictions, bit for bit.

        Raises ContractError, with nothing changed, for a state that contradicts itself or this configuration.
        """
        try:
            sequences = SequenceTable.of_state(state["roster"], self._config.capacity)
            bits = np.random.PCG64()
            bits.state = state["uniform"]
            draws, conservative, arrays = int(state["draws"]), bool(state["conservative"]), state["experience"]
            blueprints = None if state["blueprints"] is None else tuple(map(str, state["blueprints"]))
            leaves = np.asarray(state["priorities"]["leaves"], dtype=np.float64)
        except (KeyError, TypeError, ValueError) as error:
            raise ContractError(f"not the state of a live buffer: {error!r}") from error
        slots = sequences.slots()
        if not np.array_equal(np.flatnonzero(leaves > 0.0), np.sort(slots)):
            raise ContractError("not the state of a live buffer: priorities and sequences do not belong together")
        store_columns = None
        if arrays is not None:
            chunk = Chunk.checked(arrays, sequences.lengths[slots])
            store_columns = ColumnStore(chunk)
            store_columns.grow(self._checked_sizes(state.get("allocated"), store_columns, chunk), is_exact=True)
            sequences.firsts[slots] = store_columns.append(chunk)
        elif len(slots):
            raise ContractError("not the state of a live buffer: sequences without experience")
        self._priorities.set_state(state["priorities"])
        self._sequences, self._columns, self._draws, self.conservative = sequences, store_columns, draws, conservative
        self._blueprints = blueprints
        self._uniform = np.random.Generator(bits)

    def _checked_sizes(self, allocated: Any, store_columns: ColumnStore, chunk: Chunk) -> dict[str, int]:
        """Rows per table that were allocated; ContractError unless they hold ``chunk`` and keep the budget."""
        counts = chunk.counts()
        is_table = isinstance(allocated, Mapping) and set(allocated) == set(counts)
        if not is_table or any(
            type(allocated[table]) is not int or allocated[table] < counts[table] for table in counts
        ):
            raise ContractError(f"not the state of a live buffer: {allocated!r} allocated for {counts} rows")
        needed = self._bookkeeping_bytes + store_columns.bytes_of(dict(allocated))
        if needed > self._budget_bytes:
            raise ContractError(
                f"the state takes {needed / _MIB:.1f} MiB, replay.max_mb is {self._config.max_mb}: restore it under "
                "the configuration it was written with"
            )
        return dict(allocated)

    @property
    def _budget_bytes(self) -> int:
        return self._config.max_mb * _MIB

    @property
    def _fixed_bytes(self) -> int:
        return self._sequences.size_bytes + self._priorities.size_bytes

    @property
    def _bookkeeping_bytes(self) -> int:
        """With nothing held."""
        return self._fixed_bytes - self._sequences.slots().nbytes

    def _refuse_unless_each_fits(self, store: GraphDataset, chunks: list[Ids]) -> None:
        """Into an empty buffer; asked before anything leaves, so that a refused store costs nobody their place."""
        if not chunks:
            return
        like = self._columns or ColumnStore(chunk_of(store, chunks[0][:1]))
        for chosen in chunks:
            needed = self._bookkeeping_bytes + like.bytes_of(counts_of(store, chosen))
            if needed > self._budget_bytes:
                raise ContractError(
                    f"{len(chosen)} sequences of {needed / _MIB:.1f} MiB with the bookkeeping do not fit into "
                    f"replay.max_mb {self._config.max_mb} even alone: raise it or hand over shorter sequences"
                )

    def _append(self, store: GraphDataset, sequence_ids: Ids) -> Ids:
        chunk = chunk_of(store, sequence_ids)
        excess = self.steps + int(chunk.lengths.sum()) - self._config.capacity
        if excess > 0:
            self._leave(self._sequences.first_to_go(excess), "capacity")
        if self._columns is None:
            self._columns = ColumnStore(chunk)
        self._make_room(self._columns, chunk)
        firsts = self._columns.append(chunk)
        slots = self._sequences.enter(
            firsts,
            chunk.lengths,
            now_s=self._clock().timestamp(),
            run_ids=[store.sequences.run_ids[i] for i in sequence_ids],
            versions=[store.sequences.policy_versions[i] for i in sequence_ids],
        )
        self._priorities.add(slots)
        return self._sequences.ids_at(slots)

    def _make_room(self, store_columns: ColumnStore, chunk: Chunk) -> None:
        """By moving the living together, by allocating, and where the budget forbids that, by letting go."""
        counts = chunk.counts()
        while not store_columns.has_room(counts):
            live = self.steps + len(self)
            if store_columns.used[ROWS] > _worth_moving(live):
                self._compact(store_columns)
            elif self._fixed_bytes + store_columns.grown_bytes(counts) <= self._budget_bytes:
                store_columns.grow(counts)
            elif self._fixed_bytes + store_columns.grown_bytes(counts, is_exact=True) <= self._budget_bytes:
                store_columns.grow(counts, is_exact=True)
            elif store_columns.used[ROWS] > live:
                self._compact(store_columns)
            elif live:
                self._leave(self._sequences.first_to_go(max(int(chunk.lengths.sum()), self.steps // _CHUNKS)), "bytes")
            else:
                # It fits alone, ``extend`` has seen to that; what was allocated for graphs of other sizes does not.
                store_columns.clear()
                store_columns.grow(counts, is_exact=True)

    def _compact(self, store_columns: ColumnStore) -> None:
        slots = self._sequences.slots()
        self._sequences.firsts[slots] = store_columns.compact(
            self._sequences.firsts[slots], self._sequences.lengths[slots]
        )

    def _leave(self, slots: Ids, cause: str) -> None:
        if len(slots):
            self._priorities.remove(slots)
            self._sequences.leave(slots, cause)

    def _tell(self) -> None:
        self._sink.log(
            self._sequences.entered,
            {
                "simic.buffer.size": float(self.steps),
                "simic.buffer.memory_mb": self.size_bytes / _MIB,
                "simic.buffer.ttl_cleanups": float(self._sequences.cleanups),
                "simic.buffer.expired_removed": float(self._sequences.evicted["ttl"]),
                **{f"simic.buffer.evicted_{cause}": float(self._sequences.evicted[cause]) for cause in CAUSES[1:]},
            },
        )


def _worth_moving(live_rows: int) -> int:
    """Rows from which a third or more are dead: each row moved then pays for at least half of one gained."""
    return live_rows + live_rows // 2


def _chunks(lengths: NDArray[np.int64], capacity: int) -> list[Ids]:
    """Runs of sequences of about an eighth of ``capacity`` each and never more than it; at least one sequence."""
    if not len(lengths):
        return []
    number = (np.cumsum(lengths) - lengths) // max(1, capacity // _CHUNKS)
    runs = np.split(np.arange(len(lengths)), np.flatnonzero(np.diff(number)) + 1)
    # Only the last sequence of a run can end beyond its eighth, so without it the others always fit.
    return [chunk for run in runs for chunk in ([run] if lengths[run].sum() <= capacity else [run[:-1], run[-1:]])]
