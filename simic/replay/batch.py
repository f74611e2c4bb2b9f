"""One batch of whole sequences, time-major, with the graphs of its steps side by side.

Shapes: T time, B sequences, M valid steps, A heads. Flat [M] columns run sequence by sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.contracts.errors import ContractViolation
from simic.controllers.graph import GraphBatch
from simic.controllers.heads import MaskTensors

__all__ = ["SequenceBatch"]


@dataclass(frozen=True)
class SequenceBatch:
    """Rows beyond a sequence's end are padding: not valid, cut, reward, discount and log-probabilities 0."""

    sequence_ids: NDArray[np.int64]
    """[B] positions in the store."""
    valid: Tensor
    """bool [T, B]"""
    rewards: Tensor
    """float32 [T, B], points."""
    discounts: Tensor
    """float32 [T, B]: gamma, 0 where the step terminated and in padding."""
    is_cut: Tensor
    """bool [T, B]: the next row does not continue this one."""
    log_prob_behaviour: Tensor
    """float32 [T, B], joint."""
    returns: Tensor
    """float32 [T, B], discounted return to go within the sequence."""
    actions: Tensor
    """int64 [M, A], -1 where irrelevant."""
    log_prob_heads: Tensor
    """float32 [M, A] of the behaviour; 0 where irrelevant."""
    masks: MaskTensors
    """Of the M steps."""
    steps: GraphBatch
    """M graphs, the states in which the actions were chosen."""
    with_finals: GraphBatch
    """M + B graphs: ``steps``, then the final state of each sequence."""
    time: Tensor
    """int64 [M]: the row of each flat entry."""
    place: Tensor
    """int64 [M]: the column of each flat entry."""

    def __post_init__(self) -> None:
        shape, count = self.valid.shape, len(self.actions)
        for name in ("rewards", "discounts", "is_cut", "log_prob_behaviour", "returns"):
            if getattr(self, name).shape != shape:
                raise ContractViolation(f"{name}: expected {tuple(shape)}, found {tuple(getattr(self, name).shape)}")
        if self.steps.graphs != count or self.with_finals.graphs != count + shape[1]:
            raise ContractViolation(
                f"graphs: expected {count} and {count + shape[1]}, found {self.steps.graphs} and "
                f"{self.with_finals.graphs}"
            )

    def to(self, device: torch.device) -> SequenceBatch:
        """The same batch on another device; from CPU to a GPU through pinned memory, without waiting for the copy."""
        is_pinned = device.type == "cuda" and self.valid.device.type == "cpu"

        def send(tensor: Tensor) -> Tensor:
            return tensor.pin_memory().to(device, non_blocking=True) if is_pinned else tensor.to(device)

        def send_graphs(graphs: GraphBatch) -> GraphBatch:
            columns = {name: send(column) for name, column in graphs._asdict().items() if name != "edges"}
            return GraphBatch(**columns, edges={name: send(edge) for name, edge in graphs.edges.items()})

        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        parts |= {name: send(value) for name, value in parts.items() if isinstance(value, Tensor)}
        parts["masks"] = MaskTensors(*(send(mask) for mask in self.masks))
        parts |= {name: send_graphs(parts[name]) for name in ("steps", "with_finals")}
        return SequenceBatch(**parts)

    def to_time_major(self, flat: Tensor) -> Tensor:
        """[M, ...] -> [T, B, ...] with zeros in the padding; gradients flow through."""
        rows, columns = self.valid.shape
        out = flat.new_zeros((rows * columns, *flat.shape[1:]))
        return out.index_copy(0, self.time * columns + self.place, flat).view(rows, columns, *flat.shape[1:])

    def successors(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Values [T, B] of the steps and of their own successors, from values [M + B] of ``with_finals``."""
        count = len(self.actions)
        own = self.to_time_major(values[:count])
        following = torch.cat([own[1:], own.new_zeros(1, own.shape[1])])
        return own, torch.where(self.is_cut & self.valid, values[count:], following)
