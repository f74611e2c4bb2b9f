"""Image pools of the three data splits, and the samples of each host.

By default scikit-learn's 8x8 digits: one fixed shuffle gives 900 to the training pool, 450 to validation and 447 to
test. Mean-pooled 2x2 they are 16 features, each standardised; whole images are standardised by one mean and one
deviation. Both come from the training pool alone. A sample is a pair of images of one split; pairs, selectors, noise
and order are hashed from the host's key. ``images`` replaces the digits by images of the user.

Shapes: n samples, N hosts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits  # type: ignore[import-untyped]

from simic.contracts.errors import DatasetError
from simic.hosts import rng
from simic.hosts.batched.sizes import DIGIT, IMAGE, SAMPLES
from simic.hosts.interfaces import DataSplit, HostRecipe, Pairs
from simic.hosts.rng import Purpose

__all__ = [
    "POOL_SIZES",
    "HostSamples",
    "Pool",
    "PoolOf",
    "cut_pools",
    "digit_pool",
    "epoch_order",
    "host_samples",
    "with_wrong_labels",
]


POOL_SIZES: dict[DataSplit, int] = {DataSplit.TRAIN: 900, DataSplit.VALIDATION: 450, DataSplit.TEST: 447}
"""Digit images per split."""


class Pool(NamedTuple):
    """The images of one data split."""

    features: NDArray[np.float32]
    """[n, 16], standardised."""
    labels: NDArray[np.int64]
    """[n]"""
    images: NDArray[np.float32]
    """[n, 8, 8], standardised."""
    directions: NDArray[np.float64]
    """[16, 16]: principal directions of the training pool's features, scaled to unit deviation."""


PoolOf = Callable[[DataSplit], Pool]
"""Returns the pool of a split, always the same one."""


class HostSamples(NamedTuple):
    """The samples of one host in one data split."""

    inputs: NDArray[np.float32]
    """[n, ...]: inputs in the form of the trunk."""
    labels: NDArray[np.int64]
    """[n]"""
    log_gain: NDArray[np.float32]
    """[n]: standard normal; the ``gain`` family scales it by its spread."""


def cut_pools(
    images: NDArray[np.float64], labels: NDArray[np.int64], order: NDArray[np.int64], sizes: dict[DataSplit, int]
) -> dict[DataSplit, Pool]:
    """Split ``images`` [n, 8, 8] in ``order`` [n] and standardise all by the training pool."""
    features = images.reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(len(images), DIGIT)
    cuts = np.split(order, np.cumsum([sizes[part] for part in DataSplit])[:-1])
    mean, std = features[cuts[0]].mean(axis=0), features[cuts[0]].std(axis=0)
    features = ((features - mean) / np.where(std > 0, std, 1.0)).astype(np.float32)
    taught = images[cuts[0]]
    whole = ((images - taught.mean()) / max(taught.std(), np.finfo(np.float32).tiny)).astype(np.float32)
    if len(cuts[2]) != sizes[DataSplit.TEST] or not (np.isfinite(features).all() and np.isfinite(whole).all()):
        raise DatasetError(f"images: expected {sum(sizes.values())} finite ones that differ, found {len(images)}")
    directions = _directions(features[cuts[0]].astype(np.float64))
    return {
        part: Pool(features[cut], labels[cut].astype(np.int64), whole[cut], directions)
        for part, cut in zip(DataSplit, cuts, strict=True)
    }


def _directions(features: NDArray[np.float64]) -> NDArray[np.float64]:
    _, scale, rows = np.linalg.svd(features - features.mean(axis=0), full_matrices=False)
    directions: NDArray[np.float64] = rows / np.where(scale > 0, scale, 1.0)[:, None] * np.sqrt(len(features))
    return directions


@cache
def _digits() -> dict[DataSplit, Pool]:
    images, labels = load_digits(return_X_y=True)
    order = rng.permutations(rng.streams(0, Purpose.SHUFFLE), len(images))[0]
    return cut_pools(images.reshape(-1, IMAGE, IMAGE), labels, order, POOL_SIZES)


def digit_pool(part: DataSplit) -> Pool:
    """Return the digits of a split, always in the same order."""
    return _digits()[part]


def host_samples(
    key: int,
    recipe: HostRecipe,
    part: DataSplit,
    inputs: Callable[[Pairs], NDArray[np.float32]],
    pool_of: PoolOf | None = None,
) -> HostSamples:
    """Return the samples of one host; the default pool is the digits, and only training labels are noisy."""
    pool = (pool_of or digit_pool)(part)
    size = len(pool.labels)
    first = np.arange(size)
    if part is DataSplit.TRAIN:
        first = _subset(key, recipe, pool.labels)
    count = len(first)
    second = rng.integers(rng.streams(key, Purpose.PAIRING, part), count, size)[0]
    if part is DataSplit.TRAIN:
        second = first[second % count]
    selector = rng.integers(rng.streams(key, Purpose.SELECTOR, part), count, 2)[0] == 1
    pairs = Pairs(
        a=pool.features[first],
        b=pool.features[second],
        label_a=pool.labels[first],
        label_b=pool.labels[second],
        selector=selector,
        image_a=pool.images[first],
        image_b=pool.images[second],
        directions=pool.directions,
    )
    labels = recipe.labels(pairs)
    if part is DataSplit.TRAIN:
        labels = with_wrong_labels(key, labels, recipe.label_noise, min(recipe.classes, 1 + int(pool.labels.max())))
    gain = rng.normals(rng.streams(key, Purpose.GAIN, part), count)[0]
    return HostSamples(inputs(_faded(recipe.distraction, _scaled(key, recipe.column_spread, pairs))), labels, gain)


def _subset(key: int, recipe: HostRecipe, labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows of the training pool that a host owns, in random order."""
    stream = rng.streams(key, Purpose.SUBSET)
    if recipe.imbalance == 0.0:
        return rng.permutations(stream, len(labels))[0, : recipe.samples]
    ranks = rng.permutations(rng.streams(key, Purpose.IMBALANCE), 1 + int(labels.max()))[0]
    weight = np.exp(-recipe.imbalance * ranks[labels] / max(1, len(ranks) - 1))
    # The smallest of exponential waiting times are a draw without replacement in proportion to the weights.
    waiting = -np.log1p(-rng.uniforms(stream, len(labels))[0]) / weight
    return np.argsort(waiting, kind="stable")[: recipe.samples]


def _scaled(key: int, spread: float, pairs: Pairs) -> Pairs:
    """Return the pairs with scaled features; the pixels from which a feature was pooled have its factor."""
    if spread == 0.0:
        return pairs
    exponents = 2.0 * rng.uniforms(rng.streams(key, Purpose.COLUMNS), 2 * DIGIT)[0] - 1.0
    of_a, of_b = np.exp(spread * exponents).astype(np.float32).reshape(2, DIGIT)
    return pairs._replace(
        a=pairs.a * of_a,
        b=pairs.b * of_b,
        image_a=pairs.image_a * _pixels(of_a),
        image_b=pairs.image_b * _pixels(of_b),
    )


def _faded(factor: float, pairs: Pairs) -> Pairs:
    """Return the pairs with the second image times the factor."""
    if factor == 1.0:
        return pairs
    return pairs._replace(b=pairs.b * np.float32(factor), image_b=pairs.image_b * np.float32(factor))


def _pixels(factors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the factor of every pixel, [8, 8]."""
    edge = math.isqrt(DIGIT)
    return factors.reshape(edge, edge).repeat(IMAGE // edge, axis=0).repeat(IMAGE // edge, axis=1)


def with_wrong_labels(key: int, labels: NDArray[np.int64], share: float, classes: int) -> NDArray[np.int64]:
    """Replace a share of the labels [n] by another class, drawn uniformly."""
    stream = rng.streams(key, Purpose.LABEL_NOISE)
    is_wrong = rng.uniforms(stream, len(labels))[0] < share
    shift = 1 + rng.integers(rng.streams(key, Purpose.LABEL_NOISE, 1), len(labels), classes - 1)
    return np.where(is_wrong, (labels + shift[0]) % classes, labels)


def epoch_order(keys: NDArray[np.int64], samples: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
    """Return the sample order of an epoch, int64 [N, 512]; small training sets repeat."""
    order = rng.permutations(rng.streams(keys, Purpose.ORDER, epoch), SAMPLES)
    return order % samples[:, None]
