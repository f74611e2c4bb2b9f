"""Features of a host as one row of named columns, and the plan that a tree chooses from them.

A column is named ``context.NAME``, ``slot.INDEX.NAME`` or ``layer.INDEX.NAME``, where NAME is a feature of
``simic.controllers.features`` and INDEX counts the nodes of the host in their order. In a set whose hosts share one
topology, a column means the same for all hosts. Absent numbers and absent nodes are 0, as in the features.

Shapes: N hosts, F columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.contracts.batches import Observations
from simic.contracts.controllers import PlanTree, TreeLeaf, TreeSplit
from simic.contracts.errors import ConfigError
from simic.controllers.features import FEATURES, encode

__all__ = ["choose", "symptom_names", "symptoms"]


class _Column(NamedTuple):
    node: str
    number: int
    """Position of the node within the host."""
    feature: int
    """Position of the feature among those of the node type."""


def symptom_names(observations: Observations) -> list[str]:
    """Return the names of all columns [F]; hosts with fewer nodes than the largest have zeros."""
    nodes = {"slot": observations.slot_ptr, "layer": observations.layer_ptr}
    return [
        *(f"context.{name}" for name in FEATURES["context"]),
        *(
            f"{node}.{index}.{name}"
            for node, ptr in nodes.items()
            for index in range(int(np.diff(ptr).max(initial=0)))
            for name in FEATURES[node]
        ),
    ]


def symptoms(observations: Observations, names: Sequence[str]) -> NDArray[np.float32]:
    """Return the named columns, float32 [N, F]; a row depends on its own host alone.

    Raises:
        ConfigError: for a name that is no column.
    """
    columns = [_parse(name) for name in names]
    graphs = encode(observations)
    tables = {
        "context": (graphs.context_x.numpy(), np.arange(len(observations) + 1)),
        "slot": (graphs.slot_x.numpy(), observations.slot_ptr),
        "layer": (graphs.layer_x.numpy(), observations.layer_ptr),
    }
    out = np.zeros((len(observations), len(columns)), dtype=np.float32)
    for position, (node, number, feature) in enumerate(columns):
        values, ptr = tables[node]
        present = np.flatnonzero(np.diff(ptr) > number)
        out[present, position] = values[ptr[present] + number, feature]
    return np.nan_to_num(out, copy=False)


def choose(tree: PlanTree, observations: Observations) -> NDArray[np.int64]:
    """Return the plan of each host, int64 [N], as an index into the plans of the tree; raise as ``symptoms`` does."""
    names = [node.feature for node in tree.nodes if isinstance(node, TreeSplit)]
    values = dict(zip(names, symptoms(observations, names).T, strict=True))
    at = np.zeros(len(observations), dtype=np.int64)
    plans = np.zeros(len(observations), dtype=np.int64)
    for index, node in enumerate(tree.nodes):
        here = at == index
        if isinstance(node, TreeLeaf):
            plans[here] = node.plan
        else:
            at[here] = np.where(values[node.feature][here] <= node.threshold, node.left, node.right)
    return plans


def _parse(name: str) -> _Column:
    node, _, rest = name.partition(".")
    index, _, feature = rest.rpartition(".")
    if feature not in FEATURES.get(node, ()) or (node != "context") != index.isdecimal():
        raise ConfigError(f"a tree names the unknown feature {name!r}; its plan book is of another version of Simic")
    return _Column(node, int(index or 0), FEATURES[node].index(feature))
