"""Noise drawn on tensors has the bits of the noise drawn in NumPy."""

from __future__ import annotations

import numpy as np
import torch

from simic.hosts import rng
from simic.hosts.batched.dataset import epoch_noise
from simic.hosts.batched.masked import training as tensor_rng
from simic.hosts.batched.sizes import BATCH, STEPS
from simic.hosts.interfaces import Site
from simic.hosts.rng import Purpose


def test_both_draw_the_same_noise() -> None:
    keys, site = np.array([0, 7, 2**31 - 1]), Site(24)
    expected = epoch_noise(keys, 2, 5, site)
    stream = torch.from_numpy(rng.streams(keys, Purpose.DROPOUT, 5, 2).view(np.int64))
    for step in range(STEPS):
        drawn = tensor_rng.uniform_noise(stream, BATCH * site.width, step * BATCH * site.width)
        np.testing.assert_array_equal(drawn.view(3, BATCH, site.width).numpy(), expected[:, step])
    assert expected.min() >= 0
    assert expected.max() < 1
