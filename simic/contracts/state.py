"""What a controller sees: the host as a graph of layers and slots around one context."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from pydantic import Field, model_validator

from simic.contracts.actions import BlueprintName
from simic.contracts.base import Contract, Count, Finite, NonNegative, UnitInterval
from simic.contracts.lifecycle import SeedStage

__all__ = [
    "HISTORY_EPOCHS",
    "HardwareContext",
    "HostGraph",
    "HostIdentity",
    "LayerKind",
    "LayerNode",
    "SeedState",
    "SystemState",
]

HISTORY_EPOCHS = 5
"""Epochs of history a state carries at most, oldest first, the current epoch last."""

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
Small = Annotated[int, Field(ge=0, le=10_000_000)]
NodeIndex = Annotated[int, Field(ge=0, le=4095)]


class HostIdentity(Contract):
    """Which host this is; nothing here may become a feature."""

    set: Name
    """The world the host belongs to, such as ``benchmark``."""
    family: Name
    key: Annotated[int, Field(ge=0, lt=2**31)]
    """Fixes family, data, initial weights and noise."""


class LayerKind(str, Enum):
    """The role of a layer node."""

    STEM = "STEM"
    BLOCK = "BLOCK"
    HEAD = "HEAD"


class LayerNode(Contract):
    """One layer of the host."""

    kind: LayerKind
    width: Small
    """Output features."""
    hidden_width: Small | None = None
    """Live hidden units of a block."""
    is_linear: bool
    """No nonlinearity follows."""
    activation_spread: NonNegative | None = None
    """Standard deviation over validation samples of ln |output|; null before it was measured."""
    weight_norm: NonNegative | None = None
    gradient_norm: NonNegative | None = None
    """Mean over the epoch's steps, before clipping; null before the first epoch."""


class SeedState(Contract):
    """One slot and the seed in it, if any."""

    stage: SeedStage
    blueprint: BlueprintName | None = None
    alpha: UnitInterval = 0.0
    alpha_target: UnitInterval | None = None
    stage_epochs: Small
    """Epochs since the slot entered its stage."""
    age_epochs: Small | None = None
    """Epochs since germination."""
    tempo: Small | None = None
    gradient_norm: NonNegative | None = None
    gradient_health: UnitInterval | None = None
    """Share of the epoch's steps whose gradient was finite and not zero."""
    contribution: Finite | None = None
    """Validation accuracy with the seed minus without it, smoothed; null until measured."""
    contribution_error: NonNegative | None = None
    """Standard error of the contribution over validation samples; null until measured."""
    contribution_epochs: Small | None = None
    """Epochs since the contribution was measured; 0 is fresh."""
    parameters: Small = 0
    risk: UnitInterval | None = None
    """|alpha delta| / |h| on the last validation pass, capped at 1."""

    @model_validator(mode="after")
    def _seed_or_no_seed(self) -> SeedState:
        if (self.stage is SeedStage.DORMANT) != (self.blueprint is None):
            raise ValueError(f"stage {self.stage.value} with blueprint {self.blueprint}: only a dormant slot has none")
        return self


class HostGraph(Contract):
    """Layer nodes and edges; slots are the nodes of ``SystemState.slots``.

    Context edges join the one context node with every other node, so they are not listed.
    """

    layers: Annotated[list[LayerNode], Field(min_length=1, max_length=4096)]
    connects: Annotated[list[tuple[NodeIndex, NodeIndex]], Field(max_length=16384)]
    """(layer, layer): activations flow from the first to the second."""
    monitors: Annotated[list[tuple[NodeIndex, NodeIndex]], Field(max_length=16384)]
    """(slot, layer): the slot sits on this layer's output."""


class HardwareContext(Contract):
    """Where the host trains."""

    device: Annotated[str, Field(max_length=64)]
    threads: Annotated[int, Field(ge=1, le=4096)]
    dtype: Annotated[str, Field(max_length=16)] = "float32"


History = Annotated[list[Finite], Field(max_length=HISTORY_EPOCHS)]


class SystemState(Contract):
    """A host between two epochs."""

    epoch: Small
    """Epochs trained so far."""
    horizon: Annotated[int, Field(ge=1, le=100_000)]
    """Epochs of the whole episode."""
    seeds_alive: Small
    """Seeds that count against the budget: alive or fossilised."""
    seeds_max: Small
    seed_parameters: Count
    """Parameters of seeds alive or fossilised."""
    train_loss: NonNegative | None = None
    """Mean over the last epoch; null before the first."""
    train_accuracy: UnitInterval | None = None
    validation_loss: NonNegative
    validation_accuracy: UnitInterval
    """Of the network as it now runs, blended seeds included."""
    committed_validation_accuracy: UnitInterval | None = None
    """Of the network to be kept, uncommitted seeds off; measured in a final state only."""
    train_loss_history: History
    validation_loss_history: History
    validation_accuracy_history: History
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
