"""The arena: sequences keep their content wherever they are moved to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from support.batches import assert_same_batch, small_store

from simic.replay.arena import ROWS, Arena, piece_of
from simic.replay.assemble import Places, assemble
from simic.replay.flat import Flat
from simic.replay.store import GraphStore


def assert_holds(arena: Arena, firsts: np.ndarray, store: GraphStore, ids: np.ndarray) -> None:
    flat, lengths = Flat.of(arena.arrays()), store.sequences.lengths[ids]
    found = assemble(ids, Places(firsts, lengths, firsts + lengths), flat.steps, flat.masks, flat.table)
    assert_same_batch(found, store.batch(ids))


def test_compacting_moves_the_kept_in_whatever_order_they_are_named(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    piece = piece_of(store, np.arange(12))
    arena = Arena(piece)
    arena.grow(piece.counts())
    firsts = arena.append(piece)
    assert_holds(arena, firsts, store, np.arange(12))
    kept = np.array([9, 2, 3, 11, 5])
    moved = arena.compact(firsts[kept], store.sequences.lengths[kept])
    assert arena.used[ROWS] == int((store.sequences.lengths[kept] + 1).sum())
    assert_holds(arena, moved, store, kept)
    arena.grow(piece.counts(), is_exact=True)
    assert_holds(arena, arena.append(piece), store, np.arange(12))
    assert_holds(arena, moved, store, kept)


def test_the_announced_size_is_the_size_after_growing(tmp_path: Path) -> None:
    piece = piece_of(small_store(tmp_path / "s"), np.arange(12))
    arena = Arena(piece)
    for is_exact in (True, False):
        announced = arena.grown_bytes(piece.counts(), is_exact=is_exact)
        arena.grow(piece.counts(), is_exact=is_exact)
        assert arena.size_bytes == announced
        arena.append(piece)
