"""Multiply-adds of a graph network: the products of its linear layers for the nodes of each graph.

Normalisation, means over neighbours, activations and the sampling of an action are not counted.
Shapes: N graphs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from torch import nn

from simic.contracts.batches import Observations
from simic.controllers.graph import NODE_TYPES
from simic.controllers.network import GraphNetwork

__all__ = ["multiply_adds"]

_ROWS_OF_HEADS = {"op_head": "context", "slot_head": "slot", "blueprint_head": "slot"}
"""Node type whose rows a head reads, of the heads that a decision needs."""


def multiply_adds(network: GraphNetwork, observations: Observations, parts: tuple[str, ...]) -> NDArray[np.int64]:
    """Return int64 [N]: the products that the ``parts`` of a network, attributes of it, take for each graph."""
    rows = {
        "context": np.ones(len(observations), dtype=np.int64),
        "slot": np.diff(observations.slot_ptr),
        "layer": np.diff(observations.layer_ptr),
    }
    total = np.zeros(len(observations), dtype=np.int64)
    for part in parts:
        for name, module in getattr(network, part).named_modules():
            if isinstance(module, nn.Linear):
                total += _rows(part, name, rows) * module.weight.numel()
    return total


def _rows(part: str, name: str, rows: Mapping[str, NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return [N]: the rows that the layer ``name`` of ``part`` reads; one for a relation reads a row per target."""
    if part in _ROWS_OF_HEADS:
        return rows[_ROWS_OF_HEADS[part]]
    node = next(word for word in reversed(name.replace(">", "").replace("___", ".").split(".")) if word in NODE_TYPES)
    return rows[node]
