"""What a new blueprint and a new family of hosts must offer.

Shapes: n seeds or samples, P parameters of a seed, B samples, D features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Blueprint", "HostFamily", "HostRecipe", "Pairs"]


class Blueprint(Protocol):
    """A module that can grow in a slot: out = h + alpha * delta(h), and delta is 0 at birth.

    Many seeds are computed at once; seed i may depend on row i alone, so use elementwise operations
    and ``bmm``, never anything that mixes the first dimension.
    """

    parameters: int
    """P; 0 is allowed."""
    is_noisy: bool
    """Wants uniform noise while it trains."""

    def birth(self, normals: Tensor, /) -> Tensor:
        """Initial parameters [n, P] from standard normal numbers [n, P]."""
        ...

    def delta(self, parameters: Tensor, h: Tensor, noise: Tensor | None, /) -> Tensor:
        """What to add to h [n, B, D], given parameters [n, P]; ``noise`` is uniform [n, B, D], None in evaluation."""
        ...


class Pairs(NamedTuple):
    """Samples before they have a label."""

    a: NDArray[np.float32]
    """[n, 16] standardised features of the first digit."""
    b: NDArray[np.float32]
    """[n, 16] of the second."""
    label_a: NDArray[np.int64]
    label_b: NDArray[np.int64]
    selector: NDArray[np.bool_]


class HostRecipe(NamedTuple):
    """One host, before it has weights."""

    is_linear: bool
    """No ReLU after the stem."""
    hidden: tuple[int, int]
    """Live hidden units of the blocks, at most ``anatomy.HIDDEN``."""
    labels: Callable[[Pairs], NDArray[np.int64]]
    samples: int = 512
    """Distinct training samples."""
    label_noise: float = 0.0
    """Share of training labels replaced by another class."""
    classes: int = 10
    gain_block: int | None = None
    """Index of the block whose output is scaled per sample."""
    gain_level: float = 0.0
    """Mean of the logarithm of that scale."""
    gain_spread: float = 0.0
    """Its standard deviation."""


class HostFamily(Protocol):
    """A kind of host."""

    def recipe(self, draws: NDArray[np.float64]) -> HostRecipe:
        """The host that eight uniform numbers describe."""
        ...
