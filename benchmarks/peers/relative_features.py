"""Features relative to the host instead of on its own scale, as a peer of ``simic.controllers.features``.

Losses are relative to ln(classes) and accuracies to guessing; widths to the widest layer of the host; hidden units to
the width of their layer; norms of weights and gradients to the geometric mean over the layers of the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simic.contracts.batches import LAYER_KINDS, Observations
from simic.contracts.state import HISTORY_EPOCHS, LayerKind
from simic.controllers import features

Array = NDArray[Any]
Columns = dict[str, Array]

_DELTAS = tuple(
    f"{name}_delta_{age}"
    for name in ("validation_skill", "validation_loss_share", "train_loss_share")
    for age in range(HISTORY_EPOCHS - 1)
)
SHARES = ("validation_loss_share", "validation_skill", "train_loss_share", "train_skill", "skill_gap", *_DELTAS)
RELATIVE: dict[str, tuple[str, ...]] = {
    "context": features._with_flags(*SHARES),
    "slot": features._with_flags("layer_width_share", "layer_hidden_share", "gradient_share", "contribution_score"),
    "layer": features._with_flags("width_share", "hidden_share", "weight_ratio", "gradient_ratio"),
}
"""The relative columns per node type."""
ABSOLUTE: dict[str, tuple[str, ...]] = {
    "context": (
        "validation_loss",
        "validation_accuracy",
        *features._with_flags("train_loss", "train_accuracy", "accuracy_gap", *features._DELTAS),
    ),
    "slot": ("layer_width", *features._with_flags("gradient_norm", "layer_hidden_width")),
    "layer": ("width", *features._with_flags("hidden_width", "weight_norm", "gradient_norm")),
}
"""The columns that they would replace."""


def install() -> None:
    """Add the relative columns to what ``encode`` computes from now on; for one process, once."""
    context, layer, slot = features._context_columns, features._layer_columns, features._slot_columns

    def layers(observations: Observations, connects: Array) -> Columns:
        return {**layer(observations, connects), **_layer(observations)}

    def slots(observations: Observations, of_layers: Mapping[str, Array], monitors: Array) -> Columns:
        return {**slot(observations, of_layers, monitors), **_slot(observations, of_layers, monitors)}

    features._context_columns = lambda observations: {**context(observations), **_context(observations)}
    features._layer_columns, features._slot_columns = layers, slots
    for node, names in RELATIVE.items():
        features.FEATURES[node] += names


def _context(observations: Observations) -> Columns:
    system, history = observations.system, observations.history
    classes = _classes(observations)[:, None]
    scale = classes / (classes - 1.0)
    columns: Columns = {}

    def add(name: str, values: Array) -> None:
        features._optional(columns, name, values[:, -1])
        if values.shape[1] > 1:
            for age, delta in enumerate(np.diff(values, axis=1).T[::-1]):
                features._optional(columns, f"{name}_delta_{age}", delta)

    add("train_skill", (system["train_accuracy"][:, None] - 1.0 / classes) * scale)
    add("skill_gap", (system["train_accuracy"] - system["validation_accuracy"])[:, None] * scale)
    add("validation_skill", (history["validation_accuracy_history"] - 1.0 / classes) * scale)
    for part in ("validation", "train"):
        add(f"{part}_loss_share", np.log1p(history[f"{part}_loss_history"] / np.log(classes)))
    return columns


def _classes(observations: Observations) -> NDArray[np.float64]:
    """Outputs of the widest head [N]; NaN if below two."""
    is_head = observations.layers["kind"] == LAYER_KINDS.index(LayerKind.HEAD)
    widths = np.where(is_head, observations.layers["width"], 0)
    classes = _largest_over(_owners(observations.layer_ptr), widths, len(observations))
    return np.where(classes >= 2.0, classes, np.nan)


def _layer(observations: Observations) -> Columns:
    layers, host, hosts = observations.layers, _owners(observations.layer_ptr), len(observations)
    width = np.maximum(layers["width"], 1).astype(np.float64)
    columns: Columns = {}
    features._optional(columns, "width_share", np.log(width / _largest_over(host, width, hosts)[host]))
    features._optional(columns, "hidden_share", np.log(np.maximum(layers["hidden_width"], 1.0) / width))
    for quantity in ("weight", "gradient"):
        values = _log(layers[f"{quantity}_norm"])
        mean = features._mean_over(host, values, hosts)
        features._optional(columns, f"{quantity}_ratio", values - mean[host])
    return columns


def _slot(observations: Observations, layer: Mapping[str, Array], monitors: Array) -> Columns:
    slots, (slot, monitored) = observations.slots, monitors
    columns: Columns = {}
    for name in ("width_share", "hidden_share"):
        values = np.where(layer[f"{name}_valid"], layer[name], np.nan)[monitored]
        features._optional(columns, f"layer_{name}", features._mean_over(slot, values, len(slots["stage"])))
    host, gradient = _owners(observations.layer_ptr), _log(observations.layers["gradient_norm"])
    typical = np.exp(features._mean_over(host, gradient, len(observations)))[_owners(observations.slot_ptr)]
    features._optional(columns, "gradient_share", np.log1p(slots["gradient_norm"] / typical))
    error = np.where(slots["contribution_error"] > 0.0, slots["contribution_error"], np.nan)
    features._optional(columns, "contribution_score", slots["contribution"] / error)
    return columns


def _owners(ptr: Array) -> NDArray[np.int64]:
    """The host of each row of a ragged table."""
    return np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))


def _log(values: Array) -> NDArray[np.float64]:
    return np.log(np.where(values > 0.0, values, np.nan).astype(np.float64))


def _largest_over(groups: Array, values: Array, count: int) -> NDArray[np.float64]:
    largest = np.zeros(count)
    np.maximum.at(largest, groups, values)
    return largest
