"""Which of a policy's features tell the data that a host is trained on, before it is trained."""

from __future__ import annotations

from pathlib import Path

import data_sources
import numpy as np


def test_only_spreads_and_dimensions_tell_digits_from_photographs(tmp_path: Path) -> None:
    """Both are measured on the data, and policies are worse without them (ADR 24, 59, 61)."""
    patches = tmp_path / "patches.npz"
    data_sources.write_patches(patches)
    accuracy = data_sources.measure(100, patches)
    assert min(accuracy["spreads"], accuracy["dimensions"], accuracy[data_sources.EVERYTHING]) > 0.75
    others = set(accuracy) - {"spreads", "dimensions", data_sources.EVERYTHING}
    assert len(others) == 4
    assert max(accuracy[group] for group in others) < 0.6, accuracy  # 0.1 is three standard errors of guessing


def test_a_class_of_patches_is_a_direction() -> None:
    images, labels = data_sources.photo_patches()
    assert images.shape == (1_800, 8, 8)
    assert np.bincount(labels).tolist() == [180] * 10
    down, right = (slope.sum((1, 2)) for slope in np.gradient(images.astype(float), axis=(1, 2)))
    turn = (np.arctan2(down, right) + np.pi) / (2 * np.pi) * 10
    assert (np.floor(turn).astype(int) % 10 == labels).mean() > 0.95, "but for rounding of patches to whole numbers"
