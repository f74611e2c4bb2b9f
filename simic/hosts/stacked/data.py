"""Images, cut three ways, and the samples of each host.

By default scikit-learn's 8x8 digits: one fixed shuffle gives 900 to the training pool, 450 to validation and 447 to
test. Mean-pooled 2x2 they are 16 features, standardised one by one; whole images are standardised by one mean and one
deviation. Both come from the training pool alone. A sample is a pair of images of one part; pairs, selectors, noise
and order are hashed from the host's key. A user's own pictures take the digits' place: see ``pictures``.
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
from simic.hosts.counter_rng import Purpose
from simic.hosts.protocols import HostRecipe, Pairs, Part
from simic.hosts.stacked.anatomy import DIGIT, IMAGE, SAMPLES

__all__ = ["POOL_SIZES", "HostSamples", "Pool", "PoolOf", "cut_pools", "digit_pool", "epoch_order", "host_samples"]


POOL_SIZES: dict[Part, int] = {Part.TRAIN: 900, Part.VALIDATION: 450, Part.TEST: 447}
"""Of the digits."""


class Pool(NamedTuple):
    """The images of one part."""

    features: NDArray[np.float32]
    """[n, 16], standardised."""
    labels: NDArray[np.int64]
    """[n]"""
    images: NDArray[np.float32]
    """[n, 8, 8], standardised."""
    directions: NDArray[np.float64]
    """[16, 16]: principal directions of the training pool's features, scaled to unit deviation."""


PoolOf = Callable[[Part], Pool]
"""Where images come from; a part's pool is always the same."""


class HostSamples(NamedTuple):
    """One host's samples of one part."""

    inputs: NDArray[np.float32]
    """[n, ...], as the trunk shows them to its hosts."""
    labels: NDArray[np.int64]
    """[n]"""
    log_gain: NDArray[np.float32]
    """[n]: standard normal; what the ``gain`` family multiplies with its spread."""


def cut_pools(
    images: NDArray[np.float64], labels: NDArray[np.int64], order: NDArray[np.int64], sizes: dict[Part, int]
) -> dict[Part, Pool]:
    """Give ``images`` [n, 8, 8] to the parts in ``order`` [n] and standardise all by the training pool."""
    features = images.reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(len(images), DIGIT)
    cuts = np.split(order, np.cumsum([sizes[part] for part in Part])[:-1])
    mean, std = features[cuts[0]].mean(axis=0), features[cuts[0]].std(axis=0)
    features = ((features - mean) / np.where(std > 0, std, 1.0)).astype(np.float32)
    taught = images[cuts[0]]
    whole = ((images - taught.mean()) / max(taught.std(), np.finfo(np.float32).tiny)).astype(np.float32)
    if len(cuts[2]) != sizes[Part.TEST] or not (np.isfinite(features).all() and np.isfinite(whole).all()):
        raise DatasetError(f"images: expected {sum(sizes.values())} finite ones that differ, found {len(images)}")
    directions = _directions(features[cuts[0]].astype(np.float64))
    return {
        part: Pool(features[cut], labels[cut].astype(np.int64), whole[cut], directions)
        for part, cut in zip(Part, cuts, strict=True)
    }


def _directions(features: NDArray[np.float64]) -> NDArray[np.float64]:
    _, scale, rows = np.linalg.svd(features - features.mean(axis=0), full_matrices=False)
    directions: NDArray[np.float64] = rows / np.where(scale > 0, scale, 1.0)[:, None] * np.sqrt(len(features))
    return directions


@cache
def _digits() -> dict[Part, Pool]:
    images, labels = load_digits(return_X_y=True)
    order = counter_rng.permutations(counter_rng.streams(0, Purpose.SHUFFLE), len(images))[0]
    return cut_pools(images.reshape(-1, IMAGE, IMAGE), labels, order, POOL_SIZES)


def digit_pool(part: Part) -> Pool:
    """The digits of a part, always in the same order."""
    return _digits()[part]


def host_samples(
    key: int,
    recipe: HostRecipe,
    part: Part,
    inputs: Callable[[Pairs], NDArray[np.float32]],
    pool_of: PoolOf | None = None,
) -> HostSamples:
    """The samples of one host, of digits if nothing else is given; only training labels carry the recipe's noise."""
    pool = (pool_of or digit_pool)(part)
    size = len(pool.labels)
    first = np.arange(size)
    if part is Part.TRAIN:
        first = counter_rng.permutations(counter_rng.streams(key, Purpose.SUBSET), size)[0, : recipe.samples]
    count = len(first)
    second = counter_rng.integers(counter_rng.streams(key, Purpose.PAIRING, part), count, size)[0]
    if part is Part.TRAIN:
        second = first[second % count]
    selector = counter_rng.integers(counter_rng.streams(key, Purpose.SELECTOR, part), count, 2)[0] == 1
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
    if part is Part.TRAIN:
        labels = _noisy(key, labels, recipe.label_noise, min(recipe.classes, 1 + int(pool.labels.max())))
    gain = counter_rng.normals(counter_rng.streams(key, Purpose.GAIN, part), count)[0]
    return HostSamples(inputs(pairs), labels, gain)


def _noisy(key: int, labels: NDArray[np.int64], share: float, classes: int) -> NDArray[np.int64]:
    """Replace a share of the labels by another class, uniformly."""
    stream = counter_rng.streams(key, Purpose.LABEL_NOISE)
    is_wrong = counter_rng.uniforms(stream, len(labels))[0] < share
    shift = 1 + counter_rng.integers(counter_rng.streams(key, Purpose.LABEL_NOISE, 1), len(labels), classes - 1)
    return np.where(is_wrong, (labels + shift[0]) % classes, labels)


def epoch_order(keys: NDArray[np.int64], samples: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
    """Which samples each host sees in an epoch, int64 [N, 512]; small sets are seen several times."""
    order = counter_rng.permutations(counter_rng.streams(keys, Purpose.ORDER, epoch), SAMPLES)
    return order % samples[:, None]
