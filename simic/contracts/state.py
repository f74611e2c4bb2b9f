"""The observation of a controller: the host as a graph of layers and slots around one context node."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from pydantic import Field, model_validator

from simic.contracts.actions import BlueprintName
from simic.contracts.base import Contract, Count, Finite, Identifier, NonNegative, UnitInterval
from simic.contracts.lifecycle import SeedStage
from simic.contracts.names import KEY_LIMIT

__all__ = [
    "HISTORY_EPOCHS",
    "SMALL_LIMIT",
    "HardwareContext",
    "HostGraph",
    "HostIdentity",
    "LayerKind",
    "LayerNode",
    "SeedState",
    "SystemState",
]

HISTORY_EPOCHS = 5
"""Largest number of epochs of history in a state, oldest first, the current epoch last."""

SMALL_LIMIT = 10_000_000
"""Largest count in a state: of parameters of a seed, of epochs, of seeds."""
Small = Annotated[int, Field(ge=0, le=SMALL_LIMIT)]
NodeIndex = Annotated[int, Field(ge=0, le=4095)]


class HostIdentity(Contract):
    """Identity of a host; none of these fields may become a feature."""

    set: Identifier
    """The host set, such as ``benchmark``."""
    family: Identifier
    """The family of the host: its task and architecture."""
    key: Annotated[int, Field(ge=0, lt=KEY_LIMIT)]
    """Determines family, data, initial weights and noise."""


class LayerKind(str, Enum):
    """The role of a layer node."""

    STEM = "STEM"
    """First layer: input to hidden features."""
    BLOCK = "BLOCK"
    """Hidden layer or residual block."""
    HEAD = "HEAD"
    """Last layer: hidden features to classes."""


class LayerNode(Contract):
    """One layer of the host."""

    kind: LayerKind
    """Role of the layer."""
    width: Small
    """Output features."""
    hidden_width: Small | None = None
    """Number of live hidden units of a block."""
    is_linear: bool
    """Whether no nonlinearity follows."""
    activation_spread: NonNegative | None = None
    """Standard deviation over validation samples of ln |output|; null if not measured yet."""
    effective_dimension: NonNegative | None = None
    """Participation ratio of the output over validation samples: the square of the trace of its covariance over the sum
    of the squared entries (Gao et al. 2017, "A theory of multineuronal dimensionality, dynamics and measurement"). It
    is the number of directions in which the output varies, if it varies equally in them; 0 for a constant output; null
    if not measured."""
    weight_norm: NonNegative | None = None
    """L2 norm of the parameters of the layer."""
    gradient_norm: NonNegative | None = None
    """L2 norm of the gradient, mean over the steps of the epoch, before clipping; null before the first epoch."""


class SeedState(Contract):
    """One slot and the seed in it, if any."""

    stage: SeedStage
    """Stage of the slot."""
    blueprint: BlueprintName | None = None
    """Blueprint of the seed; null for an empty slot only."""
    alpha: UnitInterval = 0.0
    """Blending weight: 0 leaves the output of the host unchanged, 1 applies the seed in full."""
    alpha_target: UnitInterval | None = None
    """Value that alpha moves to; null while there is no ramp."""
    stage_epochs: Small
    """Epochs since the slot entered its stage."""
    age_epochs: Small | None = None
    """Epochs since germination."""
    tempo: Small | None = None
    """Largest number of epochs of training in isolation; after it the host blends the seed automatically."""
    gradient_norm: NonNegative | None = None
    """L2 norm of the gradient of the seed, mean over the steps of the epoch; null until measured."""
    gradient_health: UnitInterval | None = None
    """Share of the epoch's steps whose gradient was finite and not zero."""
    contribution: Finite | None = None
    """Validation accuracy with the seed minus without it, smoothed; null until measured."""
    contribution_error: NonNegative | None = None
    """Standard error of the contribution over validation samples; null until measured."""
    contribution_epochs: Small | None = None
    """Epochs since the contribution was measured; 0 is fresh."""
    parameters: Small = 0
    """Number of parameters of the seed; 0 for an empty slot."""
    risk: UnitInterval | None = None
    """|alpha delta| / |h| on the last validation pass, capped at 1."""

    @model_validator(mode="after")
    def _seed_or_no_seed(self) -> SeedState:
        if (self.stage is SeedStage.DORMANT) != (self.blueprint is None):
            raise ValueError(f"stage {self.stage.value} with blueprint {self.blueprint}: only a dormant slot has none")
        return self


class HostGraph(Contract):
    """Layer nodes and edges; slots are the nodes of ``SystemState.slots``.

    Context edges join the context node with every other node, so they are not listed.
    """

    layers: Annotated[list[LayerNode], Field(min_length=1, max_length=4096)]
    connects: Annotated[list[tuple[NodeIndex, NodeIndex]], Field(max_length=16384)]
    """(layer, layer): activations flow from the first to the second."""
    monitors: Annotated[list[tuple[NodeIndex, NodeIndex]], Field(max_length=16384)]
    """(slot, layer): the slot sits on this layer's output."""


class HardwareContext(Contract):
    """Device on which the host trains."""

    device: Annotated[str, Field(max_length=64)]
    """Name of the device, such as cpu or cuda:0."""
    threads: Annotated[int, Field(ge=1, le=4096)]
    """Threads of the process that trains the host."""
    dtype: Annotated[str, Field(max_length=16)] = "float32"
    """Type of the parameters of the host."""


History = Annotated[list[Finite], Field(max_length=HISTORY_EPOCHS)]


class SystemState(Contract):
    """A host between two epochs."""

    epoch: Small
    """Epochs trained so far."""
    horizon: Annotated[int, Field(ge=1, le=100_000)]
    """Epochs of the whole episode."""
    seeds_alive: Small
    """Number of seeds, alive or fossilised, that count against the budget."""
    seeds_max: Small
    """Budget of seeds alive or fossilised."""
    seed_parameters: Count
    """Parameters of seeds alive or fossilised."""
    host_parameters: Count | None = None
    """Trainable parameters of the host without seeds; null if unknown."""
    train_samples: Count | None = None
    """Training samples of the last epoch, each counted once; in a training loop of somebody else, as often as it was
    shown. Null before the first epoch, or if unknown."""
    train_loss: NonNegative | None = None
    """Mean training loss of the last epoch; null before the first."""
    train_accuracy: UnitInterval | None = None
    """Mean training accuracy of the last epoch; null before the first."""
    validation_loss: NonNegative
    """Mean validation loss of the running network."""
    validation_accuracy: UnitInterval
    """Validation accuracy of the running network, blended seeds included."""
    committed_validation_accuracy: UnitInterval | None = None
    """Validation accuracy of the network that is kept, without uncommitted seeds; measured in a final state only."""
    train_loss_history: History
    """Training losses of the last epochs, oldest first, at most 5."""
    validation_loss_history: History
    """Validation losses of the last epochs, oldest first, at most 5; the last is the present one."""
    validation_accuracy_history: History
    """Validation accuracies of the last epochs, oldest first, at most 5; the last is the present one."""
    slots: Annotated[list[SeedState], Field(max_length=1024)]
    graph: HostGraph
    hardware: HardwareContext

    @model_validator(mode="after")
    def _is_consistent(self) -> SystemState:
        if self.epoch > self.horizon:
            raise ValueError(f"epoch {self.epoch} lies beyond the horizon {self.horizon}")
        layers, slots = len(self.graph.layers), len(self.slots)
        if max(map(max, self.graph.connects), default=-1) >= layers:
            raise ValueError(f"a connects edge points beyond {layers} layers")
        for slot, layer in self.graph.monitors:
            if slot >= slots or layer >= layers:
                raise ValueError(f"a monitors edge points beyond {slots} slots or {layers} layers")
        return self
