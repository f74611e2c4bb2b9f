"""Passes over sequences: whole, shuffled, counted, bounded."""

from __future__ import annotations

import json

import numpy as np
import pytest

from simic.contracts.errors import ContractError, TrainingError
from simic.replay.sampler import PassSampler

RUNS = tuple(f"{i:032x}" for i in range(70))
ROWS = np.arange(70)


def sampler(seed: int = 0, max_passes: int = 3, batch: int = 16) -> PassSampler:
    return PassSampler(seed=seed, batch_sequences=batch, max_passes=max_passes)


def test_c3_a_pass_visits_every_sequence_exactly_once_in_even_batches() -> None:
    batches = list(sampler().draw_pass(RUNS, ROWS))
    assert sorted(np.concatenate(batches).tolist()) == ROWS.tolist()
    assert {len(batch) for batch in batches} == {14}
    assert np.concatenate(batches).tolist() != ROWS.tolist()


def test_c3_seeds_reproduce_the_order_and_passes_differ() -> None:
    one, same, other = sampler(), sampler(), sampler(seed=1)
    first = np.concatenate(list(one.draw_pass(RUNS, ROWS)))
    assert first.tolist() == np.concatenate(list(same.draw_pass(RUNS, ROWS))).tolist()
    assert first.tolist() != np.concatenate(list(other.draw_pass(RUNS, ROWS))).tolist()
    assert first.tolist() != np.concatenate(list(one.draw_pass(RUNS, ROWS))).tolist()


def test_order_does_not_depend_on_how_the_rows_were_listed() -> None:
    first = np.concatenate(list(sampler().draw_pass(RUNS, ROWS)))
    again = np.concatenate(list(sampler().draw_pass(RUNS, ROWS[::-1].copy())))
    assert first.tolist() == again.tolist()


def test_more_than_the_allowed_passes_are_refused_before_anything_is_drawn() -> None:
    one = sampler(max_passes=2)
    for _ in range(2):
        list(one.draw_pass(RUNS, ROWS[:5]))
    assert one.passes_left(RUNS[:7]).tolist() == [0, 0, 0, 0, 0, 2, 2]
    state = one.get_state()
    with pytest.raises(TrainingError, match="2 passes"):
        one.draw_pass(RUNS, np.array([4, 5]))
    assert one.get_state() == state
    list(one.draw_pass(RUNS, np.array([5, 6])))


def test_state_survives_json_and_another_numbering() -> None:
    """Counts belong to run ids: a later snapshot may number its episodes differently."""
    one = sampler()
    list(one.draw_pass(RUNS, ROWS[:10]))
    two = sampler(seed=99)
    two.set_state(json.loads(json.dumps(one.get_state())))
    assert np.array_equal(two.passes_of(RUNS[::-1]), one.passes_of(RUNS)[::-1])
    later = [np.concatenate(list(each.draw_pass(RUNS, ROWS))).tolist() for each in (one, two)]
    assert later[0] == later[1]


def test_a_foreign_state_is_refused() -> None:
    with pytest.raises(ContractError, match="sampler"):
        sampler().set_state({"seed": 0})


def test_an_empty_pass_has_no_batches() -> None:
    assert list(sampler().draw_pass(RUNS, np.array([], dtype=np.int64))) == []
