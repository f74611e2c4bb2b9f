"""The interface of custom hosts: a family that makes hosts from keys.

Sizes of slots and the graph of layers are found by a dry run.
Shapes: n samples, B batch, C channels or classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

from torch import Tensor, nn
from torch.optim import Optimizer

from simic.contracts.state import LayerKind
from simic.hosts.blueprints import STANDARD

__all__ = ["Layer", "Loss", "ModuleFamily", "ModuleHost", "Samples"]


Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(logits [B, C], labels int64 [B]), or those of another task, -> the loss that is minimised."""


class Layer(NamedTuple):
    """A submodule that is one node of the graph; its output is a tensor whose axis 0 is the samples."""

    name: str
    """Name of the submodule, as in ``named_modules``."""
    kind: LayerKind = LayerKind.BLOCK
    has_slot: bool = False
    """Whether seeds may grow on its output, which must be float32."""
    is_linear: bool = False
    """Whether no nonlinearity follows; always true for a head."""
    hidden_width: int | None = None
    """Hidden units of a block, if any."""
    feature_axis: int | None = None
    """Feature axis of the output; default: 1 for maps [B, C, H, W], the last for [B, T, D] and [B, D]."""


class Samples(NamedTuple):
    """Samples of one split."""

    inputs: Tensor
    """[n, ...]: inputs of the module."""
    labels: Tensor
    """Classes from 0, int64 [n]; or one per position, int64 [n, T], -100 where none counts; or numbers, float32
    [n, ...], or 0 and 1 as such."""


@dataclass(frozen=True)
class ModuleHost:
    """The specification of one custom host."""

    module: nn.Module
    """Maps inputs [B, ...] to logits [B, C], or to outputs of another task, on the CPU. A copy is trained."""
    layers: tuple[Layer, ...]
    """Layers in the order in which they run; at least one has a slot."""
    train: Samples
    """Shown once per epoch in random order; an incomplete last batch is left out."""
    validation: Samples
    """Samples of all measurements before the end of an episode."""
    test: Samples
    """Samples of the measurement after an episode; never part of an observation or reward."""
    batch: int = 32
    learning_rate: float = 0.05
    """Learning rate of SGD on the loss of a batch."""
    momentum: float = 0.9
    clip_norm: float = 5.0
    """Clip norm of the network's gradient together with its active seeds, and of an incubating seed's alone."""
    loss: Loss | None = None
    """Loss that is minimised, a mean over the batch; by default the cross-entropy, or the mean squared error of
    numbers. Measurements do not depend on it, except that labels float32 of 0 and 1 under torch's binary cross-entropy
    of logits are measured as two classes. Under another loss of numbers, the governor judges no loss."""
    logits: Callable[[Any], Tensor] | None = None
    """Takes the logits out of an output of the module that is no tensor."""
    optimizer: Callable[[nn.Module], Optimizer] | None = None
    """Makes the optimiser of the module that is trained, instead of SGD: any of ``torch.optim`` but LBFGS. Seeds join
    the parameter group of their layer, as under a Grower."""


class ModuleFamily(Protocol):
    """A family of custom hosts. Subclass it to inherit the defaults; the entry point names an instance."""

    seeds_max: int = 1
    """Limit of seeds alive or fossilised at a time."""
    blueprints: tuple[str, ...] = STANDARD
    """Blueprints that may germinate; one that does not suit every slot is left out."""

    def host(self, key: int) -> ModuleHost:
        """Return the host of a key.

        Draws from the global generators of torch, Python and NumPy, such as initial weights, depend on the key alone.
        Derive everything else that differs between hosts from the key. All hosts of a family have the same layers.
        """
        ...

    def data_digest(self) -> str | None:
        """Return a digest of data that the hosts read beside the code, which is then part of episode ids, or None."""
        return None
