"""The arena: sequences keep their content wherever they are moved to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from support.builders.batches import assert_same_batch, small_store

from simic.replay.batch import ColumnarExperience, SequenceSpans, assemble
from simic.replay.dataset import GraphDataset
from simic.replay.live.storage import ROWS, ColumnStore, chunk_of


def assert_holds(store_columns: ColumnStore, firsts: np.ndarray, store: GraphDataset, ids: np.ndarray) -> None:
    flat, lengths = ColumnarExperience.of(store_columns.arrays()), store.sequences.lengths[ids]
    found = assemble(ids, SequenceSpans(firsts, lengths, firsts + lengths), flat.steps, flat.masks, flat.table)
    assert_same_batch(found, store.batch(ids))


def test_compacting_moves_the_kept_in_whatever_order_they_are_named(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    chunk = chunk_of(store, np.arange(12))
    store_columns = ColumnStore(chunk)
    store_columns.grow(chunk.counts())
    firsts = store_columns.append(chunk)
    assert_holds(store_columns, firsts, store, np.arange(12))
    kept = np.array([9, 2, 3, 11, 5])
    moved = store_columns.compact(firsts[kept], store.sequences.lengths[kept])
    assert store_columns.used[ROWS] == int((store.sequences.lengths[kept] + 1).sum())
    assert_holds(store_columns, moved, store, kept)
    store_columns.grow(chunk.counts(), is_exact=True)
    assert_holds(store_columns, store_columns.append(chunk), store, np.arange(12))
    assert_holds(store_columns, moved, store, kept)


def test_the_announced_size_is_the_size_after_growing(tmp_path: Path) -> None:
    chunk = chunk_of(small_store(tmp_path / "s"), np.arange(12))
    store_columns = ColumnStore(chunk)
    for is_exact in (True, False):
        announced = store_columns.grown_bytes(chunk.counts(), is_exact=is_exact)
        store_columns.grow(chunk.counts(), is_exact=is_exact)
        assert store_columns.size_bytes == announced
        store_columns.append(chunk)
