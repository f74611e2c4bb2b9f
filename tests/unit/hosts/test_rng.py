"""Draws depend on their coordinates alone, and look random."""

from __future__ import annotations

import numpy as np
import pytest

from simic.hosts import rng
from simic.hosts.rng import Purpose

KEYS = np.arange(1000)


def test_split_mix_matches_its_published_first_outputs() -> None:
    """State 0 and 1234567 of the SplitMix64 reference."""
    draws = rng.bits(np.array([0, 1234567], dtype=np.uint64), 3)
    assert draws[0].tolist() == [16294208416658607535, 7960286522194355700, 487617019471545679]
    assert draws[1].tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_rows_do_not_depend_on_each_other_and_draws_not_on_their_number() -> None:
    stream = rng.streams(KEYS, Purpose.ORDER, 3)
    one = rng.streams([77], Purpose.ORDER, 3)
    assert stream[77] == one[0]
    assert np.array_equal(rng.bits(stream, 8)[77], rng.bits(one, 8)[0])
    assert np.array_equal(rng.bits(stream, 8)[:, 5:], rng.bits(stream, 3, start=5))
    for draw in (rng.normals, rng.uniforms, rng.permutations):
        assert np.array_equal(draw(stream, 10)[77], draw(one, 10)[0])


def test_keys_purposes_and_words_give_distinct_streams() -> None:
    words = ((), (0,), (1,), (0, 1), (1, 0), (2, 0))
    found = [rng.streams(KEYS, purpose, *more) for purpose in Purpose for more in words]
    everything = np.concatenate(found)
    assert len(np.unique(everything)) == len(everything)


def test_uniforms_and_normals_have_their_moments() -> None:
    stream = rng.streams(KEYS, Purpose.GAIN)
    u, z = rng.uniforms(stream, 200), rng.normals(stream, 200)
    assert 0 <= u.min() < 1e-4
    assert 1 - 1e-4 < u.max() < 1
    assert u.mean() == pytest.approx(0.5, abs=3e-3)
    assert (z.mean(), z.std(), (z**4).mean()) == pytest.approx((0.0, 1.0, 3.0), abs=0.1)
    assert z.dtype == np.float32
    assert abs(np.corrcoef(u[:-1].ravel(), u[1:].ravel())[0, 1]) < 0.01


def test_permutations_and_integers() -> None:
    stream = rng.streams(KEYS, Purpose.ORDER)
    order = rng.permutations(stream, 50)
    assert np.array_equal(np.sort(order, axis=1), np.broadcast_to(np.arange(50), order.shape))
    assert order[:, 0].mean() == pytest.approx(24.5, abs=1.5)
    counts = np.bincount(rng.integers(stream, 100, 7).ravel(), minlength=7)
    assert counts == pytest.approx(np.full(7, 1e5 / 7), rel=0.03)
