"""A live replay buffer: bounded in steps, age and bytes, with prioritised draws of whole sequences.

Sequences are appended to a column store and never change; an index with a row per sequence says which are held. Ids
are never reused, so a priority for a sequence that has left applies to nothing and not to its successor.

Shapes: E sequences, B sequences of a draw.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.contracts.errors import ConfigError, ContractError
from simic.contracts.settings.training import ReplayConfig
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
"""The capacity divided by this is the largest run of sequences added at once, so that old ones leave gradually."""


class Sample(NamedTuple):
    """Sequences of one draw, assembled for training."""

    ids: Ids
    """[B]: ids for ``update``."""
    weights: NDArray[np.float32]
    """[B] in (0, 1]: importance weights."""
    batch: SequenceBatch


class LiveBuffer:
    """Bounded replay of whole sequences; in mode ``conservative`` draws are uniform and priorities are only stored.

    Sequences older than the time to live leave first. To make room, drawn sequences leave before undrawn ones, and
    within each group the oldest first.
    """

    def __init__(self, config: ReplayConfig, *, seed: int, clock: Clock, sink: MetricSink | None = None) -> None:
        self._config, self._clock, self._sink = config, clock, sink or NullSink()
        self._sequences = SequenceTable(config.capacity)
        settings = Prioritisation(config.alpha, config.beta, config.eps, config.anneal_draws or 0, config.max_decay)
        self._priorities = PrioritisedSampler(config.capacity, seed=seed, settings=settings)
        self._uniform = generator(seed, "uniform")
        self._columns: ColumnStore | None = None
        self._blueprints: tuple[str, ...] | None = None
        self._draws = 0
        self.conservative = False
        """Whether draws ignore priorities."""
        if self.size_bytes > self._budget_bytes:
            raise ConfigError(
                f"replay.max_mb {config.max_mb} is too small for the index of {config.capacity} steps, "
                f"{self.size_bytes / _MIB:.0f} MiB: raise it or lower replay.capacity"
            )

    def __len__(self) -> int:
        """Number of sequences held."""
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
        """Number of sequences that have left, by cause: ttl, capacity, bytes; ``unseen`` were never drawn."""
        return dict(self._sequences.evicted)

    @property
    def stale_updates(self) -> int:
        """Number of priorities that arrived after their sequence had left."""
        return self._sequences.stale

    def extend(self, store: GraphDataset) -> Ids:
        """Copy every sequence of ``store`` into the buffer and return their ids in order; some may have left again.

        Raises ContractError for a sequence that alone exceeds a limit of the buffer, and for a store with other
        blueprints than the first. In that case only sequences older than the time to live have left.
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
                f"a sequence of {int(lengths.max())} steps exceeds replay.capacity {self._config.capacity}"
            )
        chunks = _chunks(lengths, self._config.capacity)
        self._refuse_unless_each_fits(store, chunks)
        self._blueprints = store.blueprints
        ids = [self._append(store, chosen) for chosen in chunks]
        self._tell()
        return np.concatenate(ids) if ids else np.zeros(0, dtype=np.int64)

    def expire(self) -> int:
        """Remove sequences older than ``ttl_s``; return how many."""
        gone = self._sequences.older_than(self._clock().timestamp() - self._config.ttl_s)
        self._leave(gone, "ttl")
        if len(gone):
            self._tell()
        return len(gone)

    def draw(self, count: int) -> tuple[Ids, NDArray[np.float32]]:
        """Draw ``count`` ids with replacement, with importance weights; raise ContractError if empty."""
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
        """Return the sequences ``ids`` in that order; raise ContractError if one has left."""
        if self._columns is None or not self._sequences.holds(ids).all():
            raise ContractError("a sequence has left the buffer since it was drawn: draw again")
        slots = self._sequences.slots_of(ids)
        firsts, lengths = self._sequences.firsts[slots], self._sequences.lengths[slots]
        flat = ColumnarExperience.of(self._columns.arrays())
        return assemble(ids, SequenceSpans(firsts, lengths, firsts + lengths), flat.steps, flat.masks, flat.table)

    def sample(self, count: int) -> Sample:
        """Draw and assemble a batch; the time taken is logged as ``simic.sampling.batch_time_ms``."""
        started = self._clock()
        ids, weights = self.draw(count)
        batch = self.batch(ids)
        self._draws += 1
        took_ms = 1e3 * (self._clock() - started).total_seconds()
        self._sink.log(self._draws, {"simic.sampling.batch_time_ms": took_ms})
        return Sample(ids, weights, batch)

    def update(self, ids: Ids, magnitudes: NDArray[np.float64]) -> int:
        """Set new magnitudes [B] of drawn sequences; return how many were dropped because their sequence has left.

        Raises ContractError, and changes nothing, for a magnitude that is NaN, infinite or negative.
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
        """Return the buffer as arrays and plain JSON, nested: sequences, priorities, generators and counters.

        The column store is compacted first, so that a restored buffer has the same room and evicts the same sequences.
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
        """Restore ``get_state``: the same draws and evictions follow, bit for bit.

        Raises ContractError, with nothing changed, for a state that is inconsistent or does not fit this configuration.
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
            raise ContractError("not the state of a live buffer: priorities and sequences do not match")
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
        """Return the allocated rows per table; raise ContractError unless they hold ``chunk`` within the budget."""
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
        """Reset to an empty buffer."""
        return self._fixed_bytes - self._sequences.slots().nbytes

    def _refuse_unless_each_fits(self, store: GraphDataset, chunks: list[Ids]) -> None:
        """Check that the sequences fit into an empty buffer, before any sequence is evicted for them."""
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
        """Make room by compacting, by allocating, or, if the budget forbids that, by evicting."""
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
                # ``extend`` has checked that it fits alone, without the memory allocated for graphs of other sizes.
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
    """Return whether a third or more of the rows are dead: each row moved then frees at least half a row."""
    return live_rows + live_rows // 2


def _chunks(lengths: NDArray[np.int64], capacity: int) -> list[Ids]:
    """Split into runs of at most ``capacity``, about an eighth of it each, and at least one sequence."""
    if not len(lengths):
        return []
    number = (np.cumsum(lengths) - lengths) // max(1, capacity // _CHUNKS)
    runs = np.split(np.arange(len(lengths)), np.flatnonzero(np.diff(number)) + 1)
    # Only the last sequence of a run can extend beyond its eighth, so the others always fit.
    return [chunk for run in runs for chunk in ([run] if lengths[run].sum() <= capacity else [run[:-1], run[-1:]])]
