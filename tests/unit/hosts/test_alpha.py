"""Ramps start where alpha is, never turn back, and end exactly at their target."""

from __future__ import annotations

import numpy as np
import pytest

from simic.hosts.lifecycle import progress, ramp

CURVES = range(3)


@pytest.mark.parametrize("curve", CURVES)
def test_progress_goes_from_0_to_1_and_never_back(curve: int) -> None:
    values = progress(np.linspace(-0.5, 1.5, 101), curve)
    assert values[0] == 0.0
    assert values[-1] == 1.0
    assert (np.diff(values) >= 0).all()
    assert progress(0.5, curve) == pytest.approx(0.5)


def test_curves_differ_before_the_middle() -> None:
    linear, cosine, sigmoid = (float(progress(0.25, curve)) for curve in CURVES)
    assert linear == 0.25
    assert cosine == pytest.approx((1 - np.cos(np.pi / 4)) / 2)
    assert sigmoid < cosine < linear


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize(("start", "target"), [(0.0, 0.7), (1.0, 0.5), (0.5, 0.5)])
def test_a_ramp_of_k_epochs_arrives_in_its_kth_epoch(curve: int, start: float, target: float) -> None:
    for epochs in (3, 5, 8):
        values = ramp(start, target, np.arange(1, epochs + 2), epochs, curve)
        assert values.dtype == np.float32
        assert (values[epochs - 1 :] == np.float32(target)).all()
        between = (values - np.float32(start)) * np.sign(target - start)
        assert (np.diff(between) >= 0).all()
        assert start == target or not (values[: epochs - 1] == np.float32(target)).any()


def test_speed_0_jumps() -> None:
    assert ramp(0.0, 0.7, 1, 0, 0) == np.float32(0.7)
