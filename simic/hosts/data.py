"""Digits, cut three ways, and the samples of each host.

scikit-learn's digits, 8x8 mean-pooled 2x2 to 16 features and standardised with the training pool's statistics.
One fixed shuffle gives 900 digits to the training pool, 450 to validation and 447 to test. A sample is a pair of
digits of one part; pairs, selectors, noise and order are hashed from the host's key.
Shapes: n samples, N hosts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits  # type: ignore[import-untyped]

from simic.contracts.errors import DatasetError
from simic.hosts import counter_rng
from simic.hosts.anatomy import DIGIT, SAMPLES
from simic.hosts.counter_rng import Purpose
from simic.hosts.protocols import HostRecipe, Pairs, Part

__all__ = ["POOL_SIZES", "DigitPool", "HostSamples", "digit_pool", "epoch_order", "host_samples"]


POOL_SIZES: dict[Part, int] = {Part.TRAIN: 900, Part.VALIDATION: 450, Part.TEST: 447}


class DigitPool(NamedTuple):
    """The digits of one part."""

    features: NDArray[np.float32]
    """[n, 16]"""
    labels: NDArray[np.int64]
    """[n]"""


class HostSamples(NamedTuple):
    """One host's samples of one part."""

    inputs: NDArray[np.float32]
    """[n, ...], as the trunk shows them to its hosts."""
    labels: NDArray[np.int64]
    """[n]"""
    log_gain: NDArray[np.float32]
    """[n]: standard normal; what the ``gain`` family multiplies with its spread."""


@cache
def _pools() -> dict[Part, DigitPool]:
    images, labels = load_digits(return_X_y=True)
    features = images.reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(len(images), DIGIT)
    order = counter_rng.permutations(counter_rng.streams(0, Purpose.SHUFFLE), len(images))[0]
    cuts = np.split(order, np.cumsum([POOL_SIZES[part] for part in Part])[:-1])
    mean, std = features[cuts[0]].mean(axis=0), features[cuts[0]].std(axis=0)
    features = ((features - mean) / np.where(std > 0, std, 1.0)).astype(np.float32)
    if len(cuts[2]) != POOL_SIZES[Part.TEST] or not np.isfinite(features).all():
        raise DatasetError(f"digits: expected {sum(POOL_SIZES.values())} finite images, found {len(images)}")
    return {part: DigitPool(features[cut], labels[cut].astype(np.int64)) for part, cut in zip(Part, cuts, strict=True)}


def digit_pool(part: Part) -> DigitPool:
    """The digits of a part, always in the same order."""
    return _pools()[part]


def host_samples(
    key: int, recipe: HostRecipe, part: Part, inputs: Callable[[Pairs], NDArray[np.float32]]
) -> HostSamples:
    """The samples of one host; training samples carry the recipe's label noise, the others are clean."""
    pool, size = digit_pool(part), POOL_SIZES[part]
    first = np.arange(size)
    if part is Part.TRAIN:
        first = counter_rng.permutations(counter_rng.streams(key, Purpose.SUBSET), size)[0, : recipe.samples]
    count = len(first)
    second = counter_rng.integers(counter_rng.streams(key, Purpose.PAIRING, part), count, size)[0]
    if part is Part.TRAIN:
        second = first[second % count]
    selector = counter_rng.integers(counter_rng.streams(key, Purpose.SELECTOR, part), count, 2)[0] == 1
    pairs = Pairs(pool.features[first], pool.features[second], pool.labels[first], pool.labels[second], selector)
    labels = recipe.labels(pairs)
    if part is Part.TRAIN:
        labels = _noisy(key, labels, recipe)
    gain = counter_rng.normals(counter_rng.streams(key, Purpose.GAIN, part), count)[0]
    return HostSamples(inputs(pairs), labels, gain)


def _noisy(key: int, labels: NDArray[np.int64], recipe: HostRecipe) -> NDArray[np.int64]:
    """Replace a share of the labels by another class, uniformly."""
    stream = counter_rng.streams(key, Purpose.LABEL_NOISE)
    is_wrong = counter_rng.uniforms(stream, len(labels))[0] < recipe.label_noise
    shift = 1 + counter_rng.integers(counter_rng.streams(key, Purpose.LABEL_NOISE, 1), len(labels), recipe.classes - 1)
    return np.where(is_wrong, (labels + shift[0]) % recipe.classes, labels)


def epoch_order(keys: NDArray[np.int64], samples: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
    """Which samples each host sees in an epoch, int64 [N, 512]; small sets are seen several times."""
    order = counter_rng.permutations(counter_rng.streams(keys, Purpose.ORDER, epoch), SAMPLES)
    return order % samples[:, None]
