"""Node features of observations: bounded, fixed transforms of the state.

A feature is a share in [0, 1], ``log1p`` of a count, norm or loss, a difference, or the logarithm of a ratio; all are
clipped to +-``BOUND``. A number that can be absent has a companion column ``<name>_valid``; absent, both are 0.
Normalisation is fitted to a snapshot and belongs to the policy. Positions come from the graph's topology, never from
list order, so renumbering nodes only permutes rows.

Shapes: N hosts, S slots, L layers, E edges, K blueprints.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.contracts.batches import LAYER_KINDS, STAGE_INDEX, STAGES, Observations
from simic.contracts.feature_ranges import BOUND
from simic.contracts.lifecycle import SeedStage
from simic.contracts.state import HISTORY_EPOCHS
from simic.controllers.graph import GraphBatch, build

__all__ = [
    "BOUND",
    "FEATURES",
    "FEATURE_VERSION",
    "encode",
    "feature_names",
    "has_trained",
    "in_unit_of_state",
]

Array = NDArray[Any]

_TINY_LOSS = 1e-3
"""Floor of a loss inside a logarithm; far below the loss of any host."""

_DELTAS = tuple(
    f"{quantity}_delta_{age}"
    for quantity in ("validation_accuracy", "validation_loss", "train_loss")
    for age in range(HISTORY_EPOCHS - 1)
)
"""Change over one epoch; age 0 is the newest."""


def _with_flags(*names: str) -> tuple[str, ...]:
    return tuple(column for name in names for column in (name, f"{name}_valid"))


FEATURES: dict[str, tuple[str, ...]] = {
    "context": (
        "epoch_fraction",
        "remaining_epochs",
        "remaining_inverse",
        "budget_used",
        "budget_left",
        "seed_parameters",
        "validation_loss",
        "validation_accuracy",
        *_with_flags("train_loss", "train_accuracy", "accuracy_gap", "loss_ratio"),
        *_with_flags("parameters_per_sample"),
        *_with_flags(*_DELTAS),
    ),
    "slot": (
        *(f"stage={stage.value}" for stage in STAGES),
        "alpha",
        "stage_epochs",
        "parameters",
        "depth",
        "layer_width",
        "layer_is_linear",
        *_with_flags("alpha_target", "age_epochs", "tempo", "tempo_left"),
        *_with_flags("gradient_norm", "gradient_health", "contribution", "contribution_error"),
        *_with_flags("contribution_epochs", "risk"),
        *_with_flags("layer_hidden_width", "layer_spread", "layer_spread_rise", "layer_dimension"),
    ),
    "layer": (
        *(f"kind={kind.value}" for kind in LAYER_KINDS),
        "width",
        "depth",
        "is_linear",
        *_with_flags("hidden_width", "spread", "spread_rise", "dimension", "weight_norm", "gradient_norm"),
    ),
}
"""Column names per node type; slots have one further column ``blueprint=<name>`` per blueprint."""

_LOG1P = frozenset({
    "remaining_epochs", "seed_parameters", "validation_loss", "train_loss",
    "stage_epochs", "parameters", "layer_width", "tempo", "tempo_left", "age_epochs", "contribution_epochs",
    "layer_hidden_width", "layer_spread", "layer_dimension", "width", "hidden_width", "spread", "dimension",
    "weight_norm", "gradient_norm",
})  # fmt: skip
"""Features that are ``log1p`` of a number of the state."""

_EPOCH = FEATURES["context"].index("epoch_fraction")

FEATURE_VERSION = hashlib.sha256(repr(sorted(FEATURES.items())).encode()).hexdigest()[:16]
"""Digest of all names in order, 16 hexadecimal characters."""


def feature_names(blueprints: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return all columns per node type for a blueprint vocabulary."""
    return {**FEATURES, "slot": (*FEATURES["slot"], *(f"blueprint={name}" for name in blueprints))}


def in_unit_of_state(name: str, value: float) -> float:
    """Return the number of a state that a feature stands for, to the 6 digits that float32 holds of it."""
    return float(f"{math.expm1(value):.6g}") if name in _LOG1P else value


def has_trained(context_x: Tensor) -> Tensor:
    """Return for context features [N, F], not normalised, whether each host has trained an epoch, bool [N].

    The epoch tells: a framework may leave the training loss out of every state.
    """
    return context_x[:, _EPOCH] > 0


def encode(observations: Observations) -> GraphBatch:
    """Return N graphs of float32 features; a pure function of the observations."""
    connects = observations.connects + np.repeat(observations.layer_ptr[:-1], np.diff(observations.connects_ptr))
    counts = np.diff(observations.monitors_ptr)
    offsets = np.stack([np.repeat(ptr[:-1], counts) for ptr in (observations.slot_ptr, observations.layer_ptr)])
    monitors = observations.monitors + offsets
    layer = _layer_columns(observations, connects)
    names = feature_names(observations.blueprints)
    tables = {
        "context": _context_columns(observations),
        "slot": _slot_columns(observations, layer, monitors),
        "layer": layer,
    }
    context_x, slot_x, layer_x = (torch.from_numpy(_matrix(tables[node], names[node])) for node in tables)
    return build(
        context_x,
        slot_x,
        layer_x,
        torch.tensor(observations.slot_ptr),
        torch.tensor(observations.layer_ptr),
        connects=torch.from_numpy(connects),
        connects_ptr=torch.tensor(observations.connects_ptr),
        monitors=torch.from_numpy(monitors),
        monitors_ptr=torch.tensor(observations.monitors_ptr),
    )


def _matrix(columns: Mapping[str, Array], names: Sequence[str]) -> NDArray[np.float32]:
    """Return float32 [rows, columns] in the order of ``names``, clipped."""
    out = np.empty((len(next(iter(columns.values()))), len(names)), dtype=np.float32)
    for index, name in enumerate(names):
        out[:, index] = columns[name]
    return np.clip(out, -BOUND, BOUND, out=out)


def _optional(columns: dict[str, Array], name: str, values: Array, valid: Array | None = None) -> None:
    """Add an optional number and its flag; it is absent where NaN or not ``valid``."""
    present = np.isfinite(values) if valid is None else valid & np.isfinite(values)
    columns[name] = np.where(present, values, 0.0)
    columns[f"{name}_valid"] = present


def _context_columns(observations: Observations) -> dict[str, Array]:
    """Return the context columns, [N] each."""
    system = observations.system
    epoch, horizon = system["epoch"].astype(np.float64), system["horizon"].astype(np.float64)
    train, validation = system["train_loss"].astype(np.float64), system["validation_loss"].astype(np.float64)
    columns: dict[str, Array] = {
        "epoch_fraction": epoch / horizon,
        "remaining_epochs": np.log1p(horizon - epoch),
        "remaining_inverse": 1.0 / np.maximum(horizon - epoch, 1.0),
        "budget_used": system["seeds_alive"] / np.maximum(system["seeds_max"], 1),
        "budget_left": system["seeds_alive"] < system["seeds_max"],
        "seed_parameters": np.log1p(system["seed_parameters"]),
        "validation_loss": np.log1p(validation),
        "validation_accuracy": system["validation_accuracy"],
    }
    _optional(columns, "train_loss", np.log1p(train))
    _optional(columns, "train_accuracy", system["train_accuracy"])
    _optional(columns, "accuracy_gap", system["train_accuracy"] - system["validation_accuracy"])
    _optional(columns, "loss_ratio", np.log(validation + _TINY_LOSS) - np.log(train + _TINY_LOSS))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(system["host_parameters"] / system["train_samples"])
    _optional(columns, "parameters_per_sample", ratio)
    histories = {
        "validation_accuracy": observations.history["validation_accuracy_history"],
        "validation_loss": np.log1p(observations.history["validation_loss_history"]),
        "train_loss": np.log1p(observations.history["train_loss_history"]),
    }
    for quantity, history in histories.items():
        deltas = np.diff(history, axis=1)[:, ::-1]
        for age in range(HISTORY_EPOCHS - 1):
            _optional(columns, f"{quantity}_delta_{age}", deltas[:, age])
    return columns


def _layer_columns(observations: Observations, connects: Array) -> dict[str, Array]:
    """Return the layer columns, [L] each; ``connects`` [2, E] is in batch numbering."""
    layers = observations.layers
    columns: dict[str, Array] = {
        **{f"kind={kind.value}": layers["kind"] == index for index, kind in enumerate(LAYER_KINDS)},
        "width": np.log1p(layers["width"]),
        "depth": _depth(connects, observations.layer_ptr),
        "is_linear": layers["is_linear"],
    }
    spread = np.log1p(layers["activation_spread"].astype(np.float64))
    before = _mean_over(connects[1], spread[connects[0]], len(spread))
    _optional(columns, "hidden_width", np.log1p(layers["hidden_width"]))
    _optional(columns, "spread", spread)
    _optional(columns, "spread_rise", spread - before)
    _optional(columns, "dimension", np.log1p(layers["effective_dimension"]))
    _optional(columns, "weight_norm", np.log1p(layers["weight_norm"]))
    _optional(columns, "gradient_norm", np.log1p(layers["gradient_norm"]))
    return columns


def _slot_columns(observations: Observations, layer: Mapping[str, Array], monitors: Array) -> dict[str, Array]:
    """Return the slot columns, [S] each, from the layer columns; ``monitors`` [2, E] is in batch numbering."""
    slots = observations.slots
    slot, monitored = monitors
    columns: dict[str, Array] = {
        **{f"stage={stage.value}": slots["stage"] == index for index, stage in enumerate(STAGES)},
        **{f"blueprint={name}": slots["blueprint"] == index for index, name in enumerate(observations.blueprints)},
        "alpha": slots["alpha"],
        "stage_epochs": np.log1p(slots["stage_epochs"]),
        "parameters": np.log1p(slots["parameters"]),
    }
    for name, source in (("depth", "depth"), ("layer_width", "width"), ("layer_is_linear", "is_linear")):
        columns[name] = np.nan_to_num(_mean_over(slot, layer[source][monitored], len(slots["stage"])))
    for name, source in (
        ("layer_hidden_width", "hidden_width"),
        ("layer_spread", "spread"),
        ("layer_spread_rise", "spread_rise"),
        ("layer_dimension", "dimension"),
    ):
        values = np.where(layer[f"{source}_valid"], layer[source], np.nan)
        _optional(columns, name, _mean_over(slot, values[monitored], len(slots["stage"])))
    _optional(columns, "alpha_target", slots["alpha_target"])
    _optional(columns, "tempo", np.log1p(slots["tempo"]))
    left = np.log1p(np.maximum(slots["tempo"] - slots["stage_epochs"], 0.0))
    _optional(columns, "tempo_left", left, slots["stage"] == STAGE_INDEX[SeedStage.TRAINING])
    for name in ("age_epochs", "gradient_norm", "contribution_epochs"):
        _optional(columns, name, np.log1p(slots[name]))
    for name in ("gradient_health", "contribution", "contribution_error", "risk"):
        _optional(columns, name, slots[name])
    return columns


def _mean_over(groups: Array, values: Array, count: int) -> NDArray[np.float64]:
    """Return the mean of the finite ``values`` [E] per group [count]; NaN for a group without any."""
    present = np.isfinite(values)
    total = np.bincount(groups[present], weights=values[present].astype(np.float64), minlength=count)
    number = np.bincount(groups[present], minlength=count)
    return np.where(number > 0, total / np.maximum(number, 1), np.nan)


def _depth(connects: Array, layer_ptr: Array) -> NDArray[np.float64]:
    """Return the longest path from a source as a share of the longest one in the host: [L] in [0, 1].

    Layers of a cycle count as deep as the host has layers.
    """
    source, target = connects
    lengths = np.diff(layer_ptr)
    limit = np.repeat(lengths, lengths)
    depth = np.zeros(int(layer_ptr[-1]), dtype=np.int64)
    while True:
        deeper = depth.copy()
        np.maximum.at(deeper, target, depth[source] + 1)
        np.minimum(deeper, limit, out=deeper)
        if np.array_equal(deeper, depth):
            break
        depth = deeper
    deepest = np.maximum.reduceat(depth, layer_ptr[:-1]) if len(lengths) else depth
    shares: NDArray[np.float64] = depth / np.maximum(np.repeat(deepest, lengths), 1)
    return shares
