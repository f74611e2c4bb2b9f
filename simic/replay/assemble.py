"""Whole sequences out of flat columns: one gather per column, whatever holds the columns and wherever they lie.

Shapes: R rows of the columns, M valid steps of a batch, B sequences, T time, A heads, K blueprints.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.controllers.graph import ragged_rows
from simic.controllers.heads import MaskTensors
from simic.replay.batch import SequenceBatch
from simic.replay.graphs import GraphSource

__all__ = ["Places", "Steps", "assemble"]


class Steps(NamedTuple):
    """One row per step; the steps of a sequence stand together, in order."""

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


class Places(NamedTuple):
    """Where the sequences of a batch lie."""

    starts: NDArray[np.int64]
    """[B]: the first step, and the graph of its state."""
    lengths: NDArray[np.int64]
    """[B]"""
    finals: NDArray[np.int64]
    """[B]: the graph of the state after the last step."""


def assemble(
    sequence_ids: NDArray[np.int64], places: Places, steps: Steps, masks: MaskTensors, table: GraphSource
) -> SequenceBatch:
    """The sequences at ``places``, in that order, as one time-major batch on the device of the columns."""
    device = steps.rewards.device
    lengths, batch, height = places.lengths, len(sequence_ids), int(places.lengths.max(initial=0))
    place = np.repeat(np.arange(batch), lengths)
    time = np.arange(len(place)) - np.repeat(np.cumsum(lengths) - lengths, lengths)

    def sent(values: NDArray[np.int64] | NDArray[np.bool_]) -> Tensor:
        return torch.from_numpy(values).to(device)

    rows, finals, flat = sent(places.starts[place] + time), sent(places.finals), sent(time * batch + place)

    def spread(values: Tensor) -> Tensor:
        return values.new_zeros(height * batch).index_copy_(0, flat, values[rows]).view(height, batch)

    return SequenceBatch(
        sequence_ids=sequence_ids,
        valid=sent(np.arange(height)[:, None] < lengths),
        rewards=spread(steps.rewards),
        discounts=spread(steps.discounts),
        is_cut=sent(np.arange(height)[:, None] >= lengths - 1),
        log_prob_behaviour=spread(steps.log_prob_behaviour),
        returns=spread(steps.returns),
        actions=steps.actions[rows],
        log_prob_heads=steps.log_prob_heads[rows],
        masks=MaskTensors(masks.op[rows], masks.slot[ragged_rows(table.slot_ptr, rows)[0]], masks.blueprint[rows]),
        steps=table.take(rows),
        with_finals=table.take(torch.cat([rows, finals])),
        time=sent(time),
        place=sent(place),
    )
