"""Interfaces of blueprints, host families and host batches.

Shapes: N hosts, S slots, L layers, K blueprints, n seeds or samples, P parameters of a seed, B samples, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, IntEnum
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from simic.contracts.state import LayerKind

__all__ = [
    "Blueprint",
    "DataSplit",
    "HostBatch",
    "HostFamily",
    "HostRecipe",
    "HostTopology",
    "Measurement",
    "Memory",
    "Operator",
    "Pairs",
    "Reader",
    "SeedAssignment",
    "Site",
    "TrainingRecord",
    "Window",
]


class DataSplit(IntEnum):
    """Data split of a host; controllers and rewards never see ``TEST`` before an episode is over."""

    TRAIN = 0
    VALIDATION = 1
    TEST = 2


class Operator(str, Enum):
    """Rule by which a seed's delta changes the state h; nothing changes where delta is 0."""

    ADD = "add"
    """h + alpha delta"""
    MULTIPLY = "multiply"
    """h + alpha h delta"""
    GATE = "gate"
    """h + alpha h (2 sigmoid(delta) - 1): every feature is scaled by a factor from 1 - alpha to 1 + alpha."""


class Window(NamedTuple):
    """One spatial axis of a convolution, padded with zeros."""

    size: int
    stride: int
    padding: int
    dilation: int


class Reader(NamedTuple):
    """An operation that reads the state of a slot's layer; widening seeds add to its output [B, *positions, width]."""

    width: int
    space: tuple[int, ...] = ()
    """Extent of the layer's features as the operation reads them, for example behind pooling."""
    windows: tuple[Window, ...] = ()
    """Per axis of ``space``, for convolutions; empty for a linear map."""
    is_flat: bool = False
    """Whether a linear map reads all positions of ``space`` at once and gives a vector, instead of one per position."""


class Site(NamedTuple):
    """The position of a slot: its state has the shape [B, *space, D] per host."""

    width: int
    """D, features of the state."""
    space: tuple[int, ...] = ()
    """Extent of a map or a sequence; empty for vectors."""
    source: tuple[int, ...] = ()
    """[*space, C] of the input of the slot's layer; empty if ``readers`` is."""
    readers: tuple[Reader, ...] = ()
    """What reads the state; empty if that is unknown, as in batched hosts, or nothing does."""

    def __str__(self) -> str:
        return f"Site(width={self.width}, space={self.space})"


class Blueprint(Protocol):
    """A module that can grow in a slot: its delta is 0 at initialisation, and its operator blends it in.

    Many seeds are computed at once. Seed i may depend on row i alone: use elementwise operations and ``bmm``, and never
    mix the first dimension. Subclass it to inherit the defaults.
    """

    operator: Operator = Operator.ADD
    is_noisy: bool = False
    """Whether ``delta`` takes uniform noise in training."""
    is_widening: bool = False
    """Whether it adds ``additions`` to the readers of the layer, instead of a change to the layer's output."""

    def suits(self, site: Site, /) -> bool:
        """Return whether the blueprint can grow at a site."""
        return site.width > 0

    def parameters(self, site: Site, /) -> int:
        """Return P, the number of parameters at a site; 0 is allowed."""
        ...

    def birth(self, normals: Tensor, site: Site, /) -> Tensor:
        """Return initial parameters [n, P] from standard normal numbers [n, P]."""
        ...

    def delta(self, parameters: Tensor, h: Tensor, noise: Tensor | None, /) -> Tensor:
        """Return delta for states h [n, B, *space, D] from parameters [n, P]; noise is uniform [n, B, D] or None."""
        ...

    def additions(self, _parameters: Tensor, _x: Tensor, _site: Site, /) -> list[Tensor]:
        """Return what one seed adds to each reader's output, [B, *positions, width], 0 at initialisation.

        Only called if ``is_widening``, with parameters [P] and the input [B, *source] of the slot's layer.
        """
        return []


class HostTopology(NamedTuple):
    """The structure that all hosts of a batch share: the graph of layers, and the slots."""

    kinds: tuple[LayerKind, ...]
    """[L]"""
    widths: tuple[int, ...]
    """[L]: output features."""
    connects: tuple[tuple[int, int], ...]
    """(layer, layer): activations flow from the first to the second."""
    sites: tuple[Site, ...]
    """[S]"""
    monitors: tuple[tuple[int, int], ...]
    """(slot, layer): the slot sits on this layer's output."""
    classes: int
    is_loss_judged: bool = True
    """Whether the governor judges the loss and the outputs; not if training minimises another loss than the measured
    one, whose values say nothing of success then."""


class SeedAssignment(NamedTuple):
    """The state of every slot for one pass, [N, S] each."""

    blueprint: NDArray[np.int16]
    alpha: NDArray[np.float32]
    """0 where no seed is active."""
    is_incubating: NDArray[np.bool_]
    """Whether the seed learns in isolation, without effect on its host."""


class TrainingRecord(NamedTuple):
    """Measurements of one epoch of training; means are over its steps."""

    loss: NDArray[np.float64]
    """[N]"""
    accuracy: NDArray[np.float64]
    """[N]"""
    layer_gradient: NDArray[np.float64]
    """[N, L], before clipping."""
    seed_gradient: NDArray[np.float64]
    """[N, S], before clipping; NaN where no seed parameters trained."""
    seed_health: NDArray[np.float64]
    """[N, S]: share of steps with a finite, nonzero gradient; NaN where no seed parameters trained."""
    samples: NDArray[np.float64]
    """[N]: training samples, each counted once; in somebody else's loop, as often as it was shown."""


class Measurement(NamedTuple):
    """Measurements of one pass over validation or test samples."""

    loss: NDArray[np.float64]
    """[N]"""
    accuracy: NDArray[np.float64]
    """[N]"""
    accuracy_without: NDArray[np.float64]
    """[N, S]: accuracy with the slot's seed off; NaN without an active seed, or if it was not requested."""
    error_without: NDArray[np.float64]
    """[N, S]: standard error of accuracy - accuracy_without, paired by sample; NaN where that is."""
    spread: NDArray[np.float64]
    """[N, L]: standard deviation over samples of ln |layer output|, in front of the slot."""
    dimension: NDArray[np.float64]
    """[N, L]: participation ratio of the layer output, in front of the slot."""
    risk: NDArray[np.float64]
    """[N, S]: |change| / |h|, at most 1; NaN without an active seed. For a widening seed, over its readers' outputs."""
    largest_share: NDArray[np.float64]
    """[N]: share of samples in the class predicted most often; 1 means constant output."""


class Memory(NamedTuple):
    """Bytes that all hosts of a batch occupy."""

    samples: int
    """Training and validation samples."""
    parameters: int
    """Parameters and momenta of hosts and seeds."""
    snapshot: int
    """One snapshot; at most one exists at a time."""


class HostBatch(Protocol):
    """N hosts that train together; the ensemble uses no other interface of hosts.

    The results of a host must depend on its own key and history alone, not on the other hosts of the batch.
    """

    topology: HostTopology
    blueprints: Sequence[Blueprint]
    """[K]: in the index order of ``SeedAssignment.blueprint``."""

    def layers(self) -> dict[str, NDArray[Any]]:
        """Return the constant columns of layers, [N, L] each: ``hidden_width`` (NaN for none) and ``is_linear``."""
        ...

    def parameters(self) -> NDArray[np.int64]:
        """Return the trainable parameters of each host without seeds, [N]; unused hidden units are not counted."""
        ...

    def germinate(self, host: int, slot: int, number: int, blueprint: int) -> None:
        """Initialise a seed in a slot, with zero momentum; ``number`` counts the seeds this slot has held, from 1."""
        ...

    def clear(self, where: NDArray[np.bool_]) -> None:
        """Reset the slots ``where`` [N, S] to unused, momentum included."""
        ...

    def is_clear(self) -> NDArray[np.bool_]:
        """Return bool [N, S]: slots equal to an unused one."""
        ...

    def probe(self, assignment: SeedAssignment, epoch: int) -> NDArray[np.float64]:
        """Return the gradient norm [N, S] of every incubating seed on the epoch's first batch, NaN elsewhere."""
        ...

    def train(self, assignment: SeedAssignment, epoch: int) -> TrainingRecord:
        """Train one epoch in place and return its measurements."""
        ...

    def evaluate(self, part: DataSplit, assignment: SeedAssignment, *, leave_one_out: bool = True) -> Measurement:
        """Measure the hosts on a split with seeds at the given alphas; changes nothing."""
        ...

    def weight_norms(self) -> NDArray[np.float64]:
        """Return the norm of each layer's weights, [N, L]."""
        ...

    def is_finite(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return bool [N] and bool [N, S]: hosts and seeds with finite parameters and momenta."""
        ...

    def memory(self) -> Memory:
        """Return the bytes that the hosts occupy between steps."""
        ...

    def snapshot(self) -> Any:
        """Return a copy of all parameters and momenta, on the CPU."""
        ...

    def restore(self, snapshot: Any, rows: NDArray[np.bool_]) -> None:
        """Restore the hosts ``rows`` [N] from a snapshot."""
        ...

    def clear_momentum(self, rows: NDArray[np.bool_]) -> None:
        """Set the momenta of the hosts ``rows`` [N] and of all their seeds to zero."""
        ...


class Pairs(NamedTuple):
    """Pairs of images from which a family makes inputs and labels."""

    a: NDArray[np.float32]
    """[n, 16] standardised features of the first image."""
    b: NDArray[np.float32]
    """[n, 16] standardised features of the second image."""
    label_a: NDArray[np.int64]
    label_b: NDArray[np.int64]
    selector: NDArray[np.bool_]
    image_a: NDArray[np.float32]
    """[n, 8, 8], standardised: the image of the features a."""
    image_b: NDArray[np.float32]
    directions: NDArray[np.float64]
    """[16, 16]: principal directions of the training pool's features, scaled to unit deviation."""


class HostRecipe(NamedTuple):
    """The specification of one batched host."""

    is_linear: bool
    """Whether the stem has no ReLU."""
    hidden: tuple[int, int]
    """Used hidden units of the blocks, at most ``sizes.HIDDEN``."""
    labels: Callable[[Pairs], NDArray[np.int64]]
    samples: int = 512
    """Distinct training samples."""
    label_noise: float = 0.0
    """Share of training labels replaced by another class."""
    classes: int = 10
    gain_blocks: tuple[int, ...] = ()
    """Indices of the blocks whose output is scaled per sample."""
    gain_level: float = 0.0
    """Mean of the logarithm of that scale."""
    gain_spread: float = 0.0
    """Standard deviation of the logarithm of that scale."""
    rate: float = 1.0
    """Factor of the learning rate."""
    decay: float = 0.0
    """Weight decay: per step, all parameters that train shrink by this share of the learning rate."""
    layer_scales: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0)
    """Factors of the initial weights: of the stem, the two blocks and the head."""
    column_spread: float = 0.0
    """Features of a and b are multiplied by one factor each, log-uniform between exp(-spread) and exp(spread). The
    labels are those of the unscaled features."""
    imbalance: float = 0.0
    """Logarithm of how much likelier a training image of the most frequent class is than one of the rarest; the
    classes between are evenly spaced. Validation and test are not thinned."""
    distraction: float = 1.0
    """Factor of the second image: 1 leaves it whole, 0 removes it. If it decides no label, less is an easier task."""


class HostFamily(Protocol):
    """A family of batched hosts.

    It may define ``kind``, ``seeds_max`` and ``blueprints`` of the set of its own name; the default trunk is ``mlp``.
    A family with a trunk of its own has it as ``trunk``.
    """

    def recipe(self, draws: NDArray[np.float64]) -> HostRecipe:
        """Return the host that 24 uniform numbers in [0, 1) describe; the same key always gets the same ones."""
        ...
