"""What somebody writes who brings a network: a family that makes hosts from keys.

Everything else, such as the sizes of slots and the graph of layers, is found by a dry run.
Shapes: n samples, B batch, C channels or classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor, nn

from simic.contracts.state import LayerKind
from simic.hosts.keys import STANDARD

__all__ = ["Layer", "ModuleFamily", "ModuleHost", "Samples"]


class Layer(NamedTuple):
    """A part of the network that a controller sees as one node; its output is a tensor with samples in front."""

    name: str
    """Of the submodule, dotted as in ``named_modules``."""
    kind: LayerKind = LayerKind.BLOCK
    has_slot: bool = False
    """A seed may grow on its output, which must be float32 then."""
    is_linear: bool = False
    """No nonlinearity follows; always so for a head."""
    hidden_width: int | None = None
    """Hidden units of a block, where it has any."""
    feature_axis: int | None = None
    """Of the output; by default 1 for maps [B, C, H, W], the last for sequences [B, T, D] and vectors [B, D]."""


class Samples(NamedTuple):
    """What a host learns from, or is measured on."""

    inputs: Tensor
    """[n, ...], as the module takes them."""
    labels: Tensor
    """int64 [n], classes from 0."""


@dataclass(frozen=True)
class ModuleHost:
    """One host, before its first epoch."""

    module: nn.Module
    """From inputs [B, ...] to logits [B, C], on the CPU. It is copied, so the one given here stays as it is."""
    layers: tuple[Layer, ...]
    """In the order in which they run; at least one has a slot."""
    train: Samples
    """Shown once an epoch in an order of its own; an incomplete last batch is left out."""
    validation: Samples
    """What decisions and returns are measured on."""
    test: Samples
    """Read when an episode is over, and by nobody who decides."""
    batch: int = 32
    learning_rate: float = 0.05
    """Of SGD on the mean cross-entropy of a batch."""
    momentum: float = 0.9
    clip_norm: float = 5.0
    """Of the network's gradient together with the seeds it feels; of a seed's alone while it learns beside it."""


class ModuleFamily(Protocol):
    """Makes hosts. Subclass it to inherit the defaults; an instance is what the entry point names."""

    seeds_max: int = 1
    """Seeds alive or kept at a time."""
    blueprints: tuple[str, ...] = STANDARD
    """What may grow; what does not suit every slot is left out."""

    def host(self, key: int) -> ModuleHost:
        """The host of that key.

        Numbers drawn here from torch's global generator, such as initial weights, depend on the key alone; take the
        key for whatever else should differ from host to host. All hosts of a family have the same layers.
        """
        ...
