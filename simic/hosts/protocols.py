"""What a new blueprint, a new family of hosts and a new kind of host must offer.

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
    "Anatomy",
    "Blueprint",
    "HostBatch",
    "HostFamily",
    "HostRecipe",
    "Measurement",
    "Memory",
    "Operator",
    "Pairs",
    "Part",
    "Roles",
    "Site",
    "TrainingRecord",
]


class Part(IntEnum):
    """Which samples; hosts, controllers and rewards never see ``TEST`` before an episode is over."""

    TRAIN = 0
    VALIDATION = 1
    TEST = 2


class Operator(str, Enum):
    """How what a seed computes, delta, changes the state h; nothing changes where delta is 0."""

    ADD = "add"
    """h + alpha delta"""
    MULTIPLY = "multiply"
    """h + alpha h delta"""
    GATE = "gate"
    """h + alpha h (2 sigmoid(delta) - 1): every feature is scaled by something between 1 - alpha and 1 + alpha."""


class Site(NamedTuple):
    """A place where a seed can grow: the state that flows there is [B, *space, D] per host."""

    width: int
    """D"""
    space: tuple[int, ...] = ()
    """Positions of a map or of a sequence; none for plain vectors."""


class Blueprint(Protocol):
    """A module that can grow in a slot; it computes a delta that is 0 at birth, and its operator blends it in.

    Many seeds are computed at once; seed i may depend on row i alone, so use elementwise operations
    and ``bmm``, never anything that mixes the first dimension. Subclass it to inherit the defaults.
    """

    operator: Operator = Operator.ADD
    is_noisy: bool = False
    """Wants uniform noise while it trains."""

    def suits(self, site: Site, /) -> bool:
        """Can it grow there?"""
        return site.width > 0

    def parameters(self, site: Site, /) -> int:
        """P; 0 is allowed."""
        ...

    def birth(self, normals: Tensor, site: Site, /) -> Tensor:
        """Initial parameters [n, P] from standard normal numbers [n, P]."""
        ...

    def delta(self, parameters: Tensor, h: Tensor, noise: Tensor | None, /) -> Tensor:
        """The change of h [n, B, *space, D] that parameters [n, P] want; noise is uniform [n, B, D], else None."""
        ...


class Anatomy(NamedTuple):
    """What the hosts of a batch have in common: the graph a controller sees, and where seeds can grow."""

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


class Roles(NamedTuple):
    """Which seeds do what, [N, S] each."""

    blueprint: NDArray[np.int16]
    alpha: NDArray[np.float32]
    """0 where the seed has no effect on its host."""
    is_incubating: NDArray[np.bool_]
    """Learns beside its host, which does not feel it."""


class TrainingRecord(NamedTuple):
    """What an epoch showed; means are over its steps."""

    loss: NDArray[np.float64]
    """[N]"""
    accuracy: NDArray[np.float64]
    """[N]"""
    layer_gradient: NDArray[np.float64]
    """[N, L], before clipping."""
    seed_gradient: NDArray[np.float64]
    """[N, S], before clipping; NaN where no parameters trained."""
    seed_health: NDArray[np.float64]
    """[N, S]: share of steps whose gradient was finite and not zero; NaN likewise."""


class Measurement(NamedTuple):
    """What a pass over validation or test samples shows."""

    loss: NDArray[np.float64]
    """[N]"""
    accuracy: NDArray[np.float64]
    """[N]"""
    accuracy_without: NDArray[np.float64]
    """[N, S]: with that slot's seed off; NaN where there is none to switch off, or nobody looked."""
    error_without: NDArray[np.float64]
    """[N, S]: standard error over samples of accuracy - accuracy_without, paired by sample; NaN likewise."""
    spread: NDArray[np.float64]
    """[N, L]: standard deviation over samples of ln |layer output|, in front of the slot."""
    risk: NDArray[np.float64]
    """[N, S]: |alpha delta| / |h|, at most 1; NaN where nothing is added."""
    largest_share: NDArray[np.float64]
    """[N]: share of samples that fall to the class predicted most often; 1 is a host that looks at nothing."""


class Memory(NamedTuple):
    """Bytes of all hosts together."""

    samples: int
    """Training and validation samples."""
    parameters: int
    """Parameters and momenta of hosts and seeds."""
    snapshot: int
    """One snapshot; there is never more than one at a time."""


class HostBatch(Protocol):
    """N hosts that train together: where they can grow, how they learn and what they show.

    This is all the ensemble knows about hosts. Every host's numbers must be a function of its own key and of what was
    done to it, whoever trains beside it.
    """

    anatomy: Anatomy
    blueprints: Sequence[Blueprint]
    """[K] in the order of ``Roles.blueprint``."""

    def layers(self) -> dict[str, NDArray[Any]]:
        """Columns of layers that never change, [N, L] each: ``hidden_width`` (NaN for none) and ``is_linear``."""
        ...

    def germinate(self, host: int, slot: int, number: int, blueprint: int) -> None:
        """Put the ``number``-th seed this slot ever held into it, with zero momentum."""
        ...

    def clear(self, where: NDArray[np.bool_]) -> None:
        """Make the slots [N, S] as if never used, momentum included."""
        ...

    def is_clear(self) -> NDArray[np.bool_]:
        """Which slots [N, S] equal one never used."""
        ...

    def probe(self, roles: Roles, epoch: int) -> NDArray[np.float64]:
        """Gradient norm of every incubating seed on the epoch's first batch, [N, S]; NaN elsewhere. Changes nothing."""
        ...

    def train(self, roles: Roles, epoch: int) -> TrainingRecord:
        """One epoch, in place."""
        ...

    def evaluate(self, part: Part, roles: Roles, *, leave_one_out: bool = True) -> Measurement:
        """Measure the networks with seeds at the given alphas; changes nothing."""
        ...

    def weight_norms(self) -> NDArray[np.float64]:
        """Norm of each layer's weights, [N, L]."""
        ...

    def is_finite(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which hosts [N] and which seeds [N, S] have finite parameters and momenta."""
        ...

    def memory(self) -> Memory:
        """What the hosts occupy between steps."""
        ...

    def snapshot(self) -> Any:
        """A copy of all parameters and momenta, on the CPU."""
        ...

    def restore(self, snapshot: Any, rows: NDArray[np.bool_]) -> None:
        """Put the hosts ``rows`` [N] back."""
        ...

    def clear_momentum(self, rows: NDArray[np.bool_]) -> None:
        """Forget the optimiser's momentum of the hosts ``rows`` [N] and of all their seeds."""
        ...


class Pairs(NamedTuple):
    """Samples before they have a label."""

    a: NDArray[np.float32]
    """[n, 16] standardised features of the first image."""
    b: NDArray[np.float32]
    """[n, 16] of the second."""
    label_a: NDArray[np.int64]
    label_b: NDArray[np.int64]
    selector: NDArray[np.bool_]
    image_a: NDArray[np.float32]
    """[n, 8, 8], standardised: the image that a's features sum up."""
    image_b: NDArray[np.float32]
    directions: NDArray[np.float64]
    """[16, 16]: principal directions of the training pool's features, scaled to unit deviation."""


class HostRecipe(NamedTuple):
    """One stacked host, before it has weights."""

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
    gain_blocks: tuple[int, ...] = ()
    """Indices of the blocks whose output is scaled per sample."""
    gain_level: float = 0.0
    """Mean of the logarithm of that scale."""
    gain_spread: float = 0.0
    """Its standard deviation."""


class HostFamily(Protocol):
    """A kind of stacked host.

    It may also say ``kind`` (the trunk of the set of its own name, ``mlp`` if it does not), ``seeds_max`` and
    ``blueprints`` of that set.
    """

    def recipe(self, draws: NDArray[np.float64]) -> HostRecipe:
        """The host that eight uniform numbers describe."""
        ...
