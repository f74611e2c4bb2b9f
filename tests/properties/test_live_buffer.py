"""Whatever happens to a live buffer in whatever order, sequences, contents and priorities stay together.

A naive twin of dictionaries does the same: one entry per sequence, with its own priority, age and content.
"""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.builders.batches import assert_same_batch, small_store

from simic.contracts.settings.training import ReplayConfig
from simic.replay.dataset import GraphDataset
from simic.replay.live.buffer import LiveBuffer

CONFIG = ReplayConfig(capacity=70, ttl_s=100.0, max_mb=64, max_decay=0.9)
_STORES: list[GraphDataset] = []


def stores() -> list[GraphDataset]:
    """Made once; small enough that several fit, large enough that one pushes others out."""
    if not _STORES:
        with tempfile.TemporaryDirectory() as directory:
            for index, count in enumerate((1, 2, 5)):
                _STORES.append(small_store(Path(directory) / str(index), count, first_key=7 * index))
    return _STORES


class Entry(NamedTuple):
    store: int
    sequence: int
    length: int
    entered_s: float
    priority: float
    is_seen: bool


class Buffers(RuleBasedStateMachine):
    """The buffer and its twin in lockstep."""

    @initialize(seed=st.integers(0, 3))
    def begin(self, seed: int) -> None:
        self.now = datetime(2026, 1, 6, tzinfo=UTC)
        self.live = LiveBuffer(CONFIG, seed=seed, clock=lambda: self.now)
        self.twin: dict[int, Entry] = {}
        self.gone: list[int] = []
        self.greatest = 1.0
        self.counts = {"ttl": 0, "capacity": 0, "bytes": 0, "unseen": 0}

    def forget(self, keys: list[int], cause: str) -> None:
        for key in keys:
            self.counts[cause] += 1
            self.counts["unseen"] += not self.twin.pop(key).is_seen
            self.gone.append(key)

    def expire(self) -> None:
        limit = self.now.timestamp() - CONFIG.ttl_s
        self.forget([key for key, entry in self.twin.items() if entry.entered_s <= limit], "ttl")

    @rule(index=st.integers(0, 2))
    def extend(self, index: int) -> None:
        store = stores()[index]
        self.expire()
        given = self.live.extend(store).tolist()
        piece: list[tuple[int, int]] = []
        for sequence, length in enumerate(store.sequences.lengths.tolist()):
            before = int(store.sequences.lengths[:sequence].sum())
            if piece and before // 8 != int(store.sequences.lengths[: piece[0][0]].sum()) // 8:
                self.enter(index, given, piece)
                piece = []
            piece.append((sequence, length))
        self.enter(index, given, piece)

    def enter(self, index: int, given: list[int], piece: list[tuple[int, int]]) -> None:
        """Room first: drawn ones leave before others, the older before the younger."""
        arriving = sum(length for _, length in piece)
        ranked = sorted(self.twin, key=lambda key: not self.twin[key].is_seen)
        leaving: list[int] = []
        while sum(entry.length for key, entry in self.twin.items() if key not in leaving) + arriving > CONFIG.capacity:
            leaving.append(ranked.pop(0))
        self.forget(leaving, "capacity")
        for sequence, length in piece:
            assert given[sequence] not in self.twin and given[sequence] not in self.gone
            self.twin[given[sequence]] = Entry(index, sequence, length, self.now.timestamp(), self.greatest, False)

    @rule(count=st.integers(1, 6), conservative=st.booleans())
    def draw(self, count: int, conservative: bool) -> None:
        self.expire()
        if not self.twin:
            self.live.expire()
            return
        self.live.conservative = conservative
        ids, weights = self.live.draw(count)
        assert set(ids.tolist()) <= set(self.twin)
        total = sum(entry.priority**CONFIG.alpha for entry in self.twin.values())
        shares = np.array([self.twin[key].priority ** CONFIG.alpha / total for key in ids.tolist()])
        expected = (len(self.twin) * shares) ** -CONFIG.beta
        expected = np.ones(count) if conservative else expected / expected.max()
        np.testing.assert_allclose(weights, expected, rtol=1e-5)
        for key in ids.tolist():
            self.twin[key] = self.twin[key]._replace(is_seen=True)

    @rule(data=st.data())
    def update(self, data: Any) -> None:
        known = [*self.twin, *self.gone[-5:]]
        if not known:
            return
        pairs = data.draw(st.lists(st.tuples(st.sampled_from(known), st.floats(0.0, 1e6)), min_size=1, max_size=6))
        keys, magnitudes = [key for key, _ in pairs], [size for _, size in pairs]
        stale = self.live.update(np.array(keys), np.array(magnitudes))
        assert stale == sum(key not in self.twin for key in keys)
        held = {key: size + CONFIG.eps for key, size in pairs if key in self.twin}
        for key, priority in held.items():
            self.twin[key] = self.twin[key]._replace(priority=priority)
        told = [size + CONFIG.eps for key, size in pairs if key in self.twin]
        if told:
            self.greatest = max(self.greatest * CONFIG.max_decay, *told)

    @rule(seconds=st.sampled_from([0.0, 1.0, 49.5, 100.0, -30.0]))
    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    @rule()
    def clean(self) -> None:
        before = len(self.twin)
        self.expire()
        assert self.live.expire() == before - len(self.twin)

    @rule()
    def stop_and_go_on(self) -> None:
        state = self.live.get_state()
        self.live = LiveBuffer(CONFIG, seed=9, clock=lambda: self.now)
        self.live.set_state(state)

    @precondition(lambda self: hasattr(self, "twin"))
    @invariant()
    def they_agree(self) -> None:
        ids = self.live.ids
        assert ids.tolist() == list(self.twin)
        assert self.live.steps == sum(entry.length for entry in self.twin.values()) <= CONFIG.capacity
        assert self.live.evicted == self.counts
        if not self.twin:
            return
        weights = np.array([entry.priority**CONFIG.alpha for entry in self.twin.values()])
        np.testing.assert_allclose(self.live.probabilities(), weights / weights.sum(), rtol=1e-9)

    @precondition(lambda self: bool(self.twin))
    @rule(data=st.data())
    def contents(self, data: Any) -> None:
        index = self.twin[data.draw(st.sampled_from(list(self.twin)))].store
        keys = [key for key, entry in self.twin.items() if entry.store == index]
        rows = np.array([self.twin[key].sequence for key in keys])
        assert_same_batch(self.live.batch(np.array(keys)), stores()[index].batch(rows))


TestD23Alignment = Buffers.TestCase
TestD23Alignment.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
