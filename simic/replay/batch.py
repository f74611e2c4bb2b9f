"""One batch of whole sequences, time-major, with the graphs of its steps side by side.

Shapes: T time, B sequences, M valid steps, A heads. Flat [M] columns run sequence by sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.contracts.errors import ContractError
from simic.controllers.graph import GraphBatch
from simic.controllers.heads import ActionDistribution, MaskTensors
from simic.controllers.network import NetworkOutput
from simic.numerics.ragged import ragged_rows
from simic.replay.graph_table import GraphTable, rows_at

__all__ = [
    "CHILDREN",
    "COLUMNS",
    "ROW_COLUMNS",
    "Arrays",
    "ColumnarExperience",
    "SequenceBatch",
    "SequenceSpans",
    "Steps",
    "assemble",
    "ptr_name",
]


@dataclass(frozen=True)
class SequenceBatch:
    """Rows after a sequence's end are padding: not valid, cut, reward, discount and log-probabilities 0."""

    sequence_ids: NDArray[np.int64]
    """[B]: positions in the data set."""
    valid: Tensor
    """bool [T, B]"""
    places: Tensor
    """int64 [M]: positions of the valid entries in a flattened [T, B], ascending."""
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
    """Action masks of the M steps."""
    steps: GraphBatch
    """M graphs, the states in which the actions were chosen: views of ``with_finals``."""
    with_finals: GraphBatch
    """M + B graphs: ``steps``, then the final state of each sequence."""
    time: Tensor
    """int64 [M]: the row of each flat entry."""
    sequence: Tensor
    """int64 [M]: the column of each flat entry."""
    most_slots: int
    """Largest number of slots of one of the M graphs."""
    weights: Tensor | None = None
    """float32 [B]: importance weights of prioritised draws; None weighs all alike."""
    policy_lag: float | None = None
    """Mean number of versions by which the policies that acted are behind the newest one, over the sequences of
    policies; None if there is none."""

    def __post_init__(self) -> None:
        shape, count = self.valid.shape, len(self.actions)
        for name in ("rewards", "discounts", "is_cut", "log_prob_behaviour", "returns"):
            if getattr(self, name).shape != shape:
                raise ContractError(f"{name}: expected {tuple(shape)}, found {tuple(getattr(self, name).shape)}")
        if self.steps.graphs != count or self.with_finals.graphs != count + shape[1]:
            raise ContractError(
                f"graphs: expected {count} and {count + shape[1]}, found {self.steps.graphs} and "
                f"{self.with_finals.graphs}"
            )

    def to(self, device: torch.device) -> SequenceBatch:
        """Return the batch on another device; to a GPU through pinned memory, without waiting for the copy."""
        is_pinned = device.type == "cuda" and self.valid.device.type == "cpu"

        def send(tensor: Tensor) -> Tensor:
            return tensor.pin_memory().to(device, non_blocking=True) if is_pinned else tensor.to(device)

        def send_graphs(graphs: GraphBatch) -> GraphBatch:
            columns = {name: send(column) for name, column in graphs._asdict().items() if name != "edges"}
            return GraphBatch(**columns, edges={name: send(edge) for name, edge in graphs.edges.items()})

        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        parts |= {name: send(value) for name, value in parts.items() if isinstance(value, Tensor)}
        parts["masks"] = MaskTensors(*(send(mask) for mask in self.masks))
        parts["with_finals"] = send_graphs(self.with_finals)
        parts["steps"] = parts["with_finals"].first(self.steps.graphs, self.steps.sizes)
        return SequenceBatch(**parts)

    def distribution(self, output: NetworkOutput, exploration: float) -> ActionDistribution:
        """Return the distribution of the actions of ``steps``, from the output of a network for them."""
        return ActionDistribution(output, self.steps.slot_ptr, self.masks, exploration, self.most_slots)

    def valid_only(self, values: Tensor) -> Tensor:
        """Return the valid entries [M] of values [T, B], row by row. A mask would read a size from the device."""
        return values.flatten().index_select(0, self.places)

    def weighted(self, flat: Tensor) -> Tensor:
        """Return [M, A] times the weights of the sequences."""
        return flat if self.weights is None else flat * self.weights[self.sequence].unsqueeze(1)

    def to_time_major(self, flat: Tensor) -> Tensor:
        """Return [M, ...] as [T, B, ...] with zeros in the padding; differentiable."""
        rows, columns = self.valid.shape
        out = flat.new_zeros((rows * columns, *flat.shape[1:]))
        return out.index_copy(0, self.time * columns + self.sequence, flat).view(rows, columns, *flat.shape[1:])

    def successors(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return values [T, B] of the steps and of their successors, from values [M + B] of ``with_finals``."""
        count = len(self.actions)
        own = self.to_time_major(values[:count])
        following = torch.cat([own[1:], own.new_zeros(1, own.shape[1])])
        return own, torch.where(self.is_cut & self.valid, values[count:], following)


class Steps(NamedTuple):
    """Columns of steps; the steps of a sequence are consecutive and in order."""

    actions: Tensor
    """int64 [R, A]"""
    log_prob_heads: Tensor
    """float32 [R, A]"""
    log_prob_behaviour: Tensor
    """float32 [R]"""
    rewards: Tensor
    """float32 [R]"""
    discounts: Tensor
    """float32 [R]"""
    returns: Tensor
    """float32 [R]"""


class SequenceSpans(NamedTuple):
    """Positions of the sequences of a batch in the columns."""

    starts: NDArray[np.int64]
    """[B]: the first step, and the graph of its state."""
    lengths: NDArray[np.int64]
    """[B]"""
    finals: NDArray[np.int64]
    """[B]: the graph of the state after the last step."""


def assemble(
    sequence_ids: NDArray[np.int64], spans: SequenceSpans, steps: Steps, masks: MaskTensors, table: GraphTable
) -> SequenceBatch:
    """Return the sequences at ``spans``, in that order, as one time-major batch on the device of the columns."""
    device = steps.rewards.device
    lengths, batch, height = spans.lengths, len(sequence_ids), int(spans.lengths.max(initial=0))
    sequence = np.repeat(np.arange(batch), lengths)
    time = np.arange(len(sequence)) - np.repeat(np.cumsum(lengths) - lengths, lengths)

    def sent(values: NDArray[np.int64] | NDArray[np.bool_]) -> Tensor:
        return torch.from_numpy(values).to(device)

    first, valid = torch.from_numpy(spans.starts[sequence] + time), np.arange(height)[:, None] < lengths
    rows, flat = first.to(device), sent(time * batch + sequence)

    def spread(values: Tensor) -> Tensor:
        return values.new_zeros(height * batch).index_copy_(0, flat, values[rows]).view(height, batch)

    picked = table.select(torch.cat([first, torch.from_numpy(spans.finals)]))
    with_finals, slots = picked.to_batch(), ragged_rows(table.slot_ptr, first)[0]
    return SequenceBatch(
        sequence_ids=sequence_ids,
        valid=sent(valid),
        places=sent(np.flatnonzero(valid)),
        rewards=spread(steps.rewards),
        discounts=spread(steps.discounts),
        is_cut=sent(np.arange(height)[:, None] >= lengths - 1),
        log_prob_behaviour=spread(steps.log_prob_behaviour),
        returns=spread(steps.returns),
        actions=steps.actions[rows],
        log_prob_heads=steps.log_prob_heads[rows],
        masks=MaskTensors(masks.op[rows], rows_at(masks.slot, slots), masks.blueprint[rows]),
        steps=with_finals.first(len(first), picked.sizes(len(first))),
        with_finals=with_finals,
        time=sent(time),
        sequence=sent(sequence),
        most_slots=int(picked.slot_ptr[: len(first) + 1].diff().max()) if len(first) else 0,
    )


Arrays = dict[str, NDArray[Any]]

STEP_COLUMNS = Steps._fields
ROW_COLUMNS = (*STEP_COLUMNS, "mask_op", "mask_blueprint", "context_x")
CHILDREN: dict[str, tuple[str, ...]] = {
    "slot": ("slot_x", "mask_slot"),
    "layer": ("layer_x",),
    "connects": ("connects",),
    "monitors": ("monitors",),
}
"""Child tables and their columns; ``<child>_ptr`` holds the offsets."""
COLUMNS = (*ROW_COLUMNS, *(name for columns in CHILDREN.values() for name in columns))


def ptr_name(child: str) -> str:
    """Return the name of a child table's offsets [R + 1]."""
    return f"{child}_ptr"


class ColumnarExperience(NamedTuple):
    """Experience as tensors that share the memory of arrays."""

    steps: Steps
    masks: MaskTensors
    table: GraphTable

    @staticmethod
    def of(arrays: Mapping[str, NDArray[Any]]) -> ColumnarExperience:
        """Wrap arrays with the names of ``COLUMNS`` and their offsets."""
        tensors = {name: torch.from_numpy(np.asarray(values)) for name, values in arrays.items()}
        return ColumnarExperience(
            Steps(**{name: tensors[name] for name in Steps._fields}),
            MaskTensors(tensors["mask_op"], tensors["mask_slot"], tensors["mask_blueprint"]),
            GraphTable(**{name: tensors[name] for name in GraphTable._fields}),
        )

    def to(self, device: torch.device) -> ColumnarExperience:
        """Return the same columns on another device."""
        steps = Steps(*(column.to(device) for column in self.steps))
        return ColumnarExperience(steps, MaskTensors(*(mask.to(device) for mask in self.masks)), self.table.to(device))
