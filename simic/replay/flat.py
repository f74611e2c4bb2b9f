"""The columns of experience by name, as NumPy arrays: the form that is kept in an arena, written to files and mapped.

Five tables: one row per graph, and per graph any number of slots, layers, connects and monitors, found by offsets.
Shapes: R graph rows, S slots, L layers, E edges, F features, A heads, K blueprints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from simic.controllers.heads import MaskTensors
from simic.replay.assemble import Steps
from simic.replay.graphs import GraphTable

__all__ = ["CHILDREN", "COLUMNS", "ROW_COLUMNS", "Arrays", "Flat", "ptr_name"]

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
    """The column [R + 1] that says which rows of a child table belong to which graph."""
    return f"{child}_ptr"


class Flat(NamedTuple):
    """Columns as tensors that share the arrays' memory."""

    steps: Steps
    masks: MaskTensors
    table: GraphTable

    @staticmethod
    def of(arrays: Mapping[str, NDArray[Any]]) -> Flat:
        """From arrays under the names of ``COLUMNS`` and their offsets."""
        tensors = {name: torch.from_numpy(np.asarray(values)) for name, values in arrays.items()}
        return Flat(
            Steps(**{name: tensors[name] for name in Steps._fields}),
            MaskTensors(tensors["mask_op"], tensors["mask_slot"], tensors["mask_blueprint"]),
            GraphTable(**{name: tensors[name] for name in GraphTable._fields}),
        )

    def to(self, device: torch.device) -> Flat:
        """The same columns on another device."""
        steps = Steps(*(column.to(device) for column in self.steps))
        return Flat(steps, MaskTensors(*(mask.to(device) for mask in self.masks)), self.table.to(device))
