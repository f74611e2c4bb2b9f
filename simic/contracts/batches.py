"""States, masks, actions and decisions of many hosts at once, as NumPy columns.

Shapes: N hosts, S slots of all hosts, L layers of all hosts, E edges, K blueprints, H history epochs, A heads.
Tables are ragged: ``*_ptr`` [N + 1] holds offsets, so row i owns ``ptr[i]:ptr[i + 1]``. Absent numbers
are NaN and absent indices -1 in memory; on the wire they are null.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from simic.contracts.actions import (
    ALPHA_CURVES,
    ALPHA_SPEEDS,
    ALPHA_TARGETS,
    HEADS,
    OPS,
    RELEVANT_HEADS,
    TEMPOS,
    Action,
    ActionMasks,
    BehaviourLogProb,
)
from simic.contracts.errors import ContractError
from simic.contracts.lifecycle import SeedStage
from simic.contracts.state import (
    HISTORY_EPOCHS,
    HardwareContext,
    HostGraph,
    LayerKind,
    LayerNode,
    SeedState,
    SystemState,
)

__all__ = [
    "HEAD_INDEX",
    "HISTORY_COLUMNS",
    "LAYER_COLUMNS",
    "LAYER_KINDS",
    "OP_INDEX",
    "SLOT_COLUMNS",
    "STAGES",
    "STAGE_INDEX",
    "SYSTEM_COLUMNS",
    "Decisions",
    "Masks",
    "Observations",
    "action_of",
    "log_prob_of",
    "masks_of",
    "masks_to_columns",
    "relevance",
]

Columns = Mapping[str, NDArray[Any]]

STAGES: tuple[SeedStage, ...] = tuple(SeedStage)
STAGE_INDEX = {stage: index for index, stage in enumerate(STAGES)}
LAYER_KINDS: tuple[LayerKind, ...] = tuple(LayerKind)
OP_INDEX = {op: index for index, op in enumerate(OPS)}
HEAD_INDEX = {head: index for index, head in enumerate(HEADS)}

SYSTEM_COLUMNS: dict[str, DTypeLike] = {
    "epoch": np.int32,
    "horizon": np.int32,
    "seeds_alive": np.int32,
    "seeds_max": np.int32,
    "seed_parameters": np.int64,
    "host_parameters": np.float64,
    "train_samples": np.float64,
    "train_loss": np.float32,
    "train_accuracy": np.float32,
    "validation_loss": np.float32,
    "validation_accuracy": np.float32,
}
HISTORY_COLUMNS = ("train_loss_history", "validation_loss_history", "validation_accuracy_history")
SLOT_COLUMNS: dict[str, DTypeLike] = {
    "stage": np.int8,
    "blueprint": np.int16,
    "alpha": np.float32,
    "alpha_target": np.float32,
    "stage_epochs": np.int32,
    "age_epochs": np.float32,
    "tempo": np.float32,
    "gradient_norm": np.float32,
    "gradient_health": np.float32,
    "contribution": np.float32,
    "contribution_error": np.float32,
    "contribution_epochs": np.float32,
    "parameters": np.int32,
    "risk": np.float32,
}
LAYER_COLUMNS: dict[str, DTypeLike] = {
    "kind": np.int8,
    "width": np.int32,
    "hidden_width": np.float32,
    "is_linear": np.bool_,
    "activation_spread": np.float32,
    "effective_dimension": np.float32,
    "weight_norm": np.float32,
    "gradient_norm": np.float32,
}
_OPTIONAL_INTEGERS = {"age_epochs", "tempo", "contribution_epochs", "hidden_width", "host_parameters", "train_samples"}


@dataclass(frozen=True)
class Observations:
    """N states as columns, named like the fields of the contract."""

    system: Columns
    """[N] each, ``SYSTEM_COLUMNS``."""
    history: Columns
    """float32 [N, H] each, ``HISTORY_COLUMNS``; NaN before short histories, the last column is the present epoch."""
    slots: Columns
    """[S] each, ``SLOT_COLUMNS``; ``stage`` indexes ``STAGES``, ``blueprint`` indexes ``blueprints``."""
    slot_ptr: NDArray[np.int64]
    layers: Columns
    """[L] each, ``LAYER_COLUMNS``; ``kind`` indexes ``LAYER_KINDS``."""
    layer_ptr: NDArray[np.int64]
    connects: NDArray[np.int64]
    """[2, E] from layer to layer, numbered within the host."""
    connects_ptr: NDArray[np.int64]
    monitors: NDArray[np.int64]
    """[2, E] from slot to layer, numbered within the host."""
    monitors_ptr: NDArray[np.int64]
    blueprints: tuple[str, ...]
    """K names, to which ``slots['blueprint']`` refers by index."""

    def __post_init__(self) -> None:
        n = len(self)
        _check_table("system", self.system, SYSTEM_COLUMNS, n)
        _check_table("slots", self.slots, SLOT_COLUMNS, int(self.slot_ptr[-1]))
        _check_table("layers", self.layers, LAYER_COLUMNS, int(self.layer_ptr[-1]))
        for name in HISTORY_COLUMNS:
            if self.history[name].shape != (n, HISTORY_EPOCHS):
                raise ContractError(f"history {name}: expected {(n, HISTORY_EPOCHS)}, found {self.history[name].shape}")
        for edges, ptr in ((self.connects, self.connects_ptr), (self.monitors, self.monitors_ptr)):
            if edges.shape != (2, int(ptr[-1])) or len(ptr) != n + 1:
                raise ContractError(f"edges {edges.shape} do not match their offsets for {n} hosts")

    def __len__(self) -> int:
        return len(self.slot_ptr) - 1

    def take(self, rows: NDArray[np.int64]) -> Observations:
        """Return the given hosts, in the given order."""
        slots, slot_ptr = _ragged_rows(self.slot_ptr, rows)
        layers, layer_ptr = _ragged_rows(self.layer_ptr, rows)
        connects, connects_ptr = _ragged_rows(self.connects_ptr, rows)
        monitors, monitors_ptr = _ragged_rows(self.monitors_ptr, rows)
        return Observations(
            system={k: v[rows] for k, v in self.system.items()},
            history={k: v[rows] for k, v in self.history.items()},
            slots={k: v[slots] for k, v in self.slots.items()},
            slot_ptr=slot_ptr,
            layers={k: v[layers] for k, v in self.layers.items()},
            layer_ptr=layer_ptr,
            connects=self.connects[:, connects],
            connects_ptr=connects_ptr,
            monitors=self.monitors[:, monitors],
            monitors_ptr=monitors_ptr,
            blueprints=self.blueprints,
        )

    @staticmethod
    def join(parts: Sequence[Observations]) -> Observations:
        """Concatenate the hosts of one or more tables, which refer to the same blueprints."""
        return Observations(
            system=_stacked([part.system for part in parts]),
            history=_stacked([part.history for part in parts]),
            slots=_stacked([part.slots for part in parts]),
            slot_ptr=_stacked_offsets([part.slot_ptr for part in parts]),
            layers=_stacked([part.layers for part in parts]),
            layer_ptr=_stacked_offsets([part.layer_ptr for part in parts]),
            connects=np.concatenate([part.connects for part in parts], axis=1),
            connects_ptr=_stacked_offsets([part.connects_ptr for part in parts]),
            monitors=np.concatenate([part.monitors for part in parts], axis=1),
            monitors_ptr=_stacked_offsets([part.monitors_ptr for part in parts]),
            blueprints=parts[0].blueprints,
        )

    @staticmethod
    def from_states(states: Sequence[SystemState], blueprints: tuple[str, ...]) -> Observations:
        """Convert wire states to columns; raise ContractError for a blueprint outside ``blueprints``."""
        slots = [slot for state in states for slot in state.slots]
        layers = [layer for state in states for layer in state.graph.layers]
        vocabulary = {name: index for index, name in enumerate(blueprints)}
        unknown = {slot.blueprint for slot in slots if slot.blueprint is not None} - set(vocabulary)
        if unknown:
            raise ContractError(f"unknown blueprints {sorted(unknown)}; known blueprints: {', '.join(blueprints)}")
        coded = {
            "stage": [STAGE_INDEX[slot.stage] for slot in slots],
            "blueprint": [-1 if slot.blueprint is None else vocabulary[slot.blueprint] for slot in slots],
        }
        kinds = {"kind": [LAYER_KINDS.index(layer.kind) for layer in layers]}
        return Observations(
            system=_columns(states, SYSTEM_COLUMNS, {}),
            history={name: _padded([getattr(state, name) for state in states]) for name in HISTORY_COLUMNS},
            slots=_columns(slots, SLOT_COLUMNS, coded),
            slot_ptr=_offsets(len(state.slots) for state in states),
            layers=_columns(layers, LAYER_COLUMNS, kinds),
            layer_ptr=_offsets(len(state.graph.layers) for state in states),
            connects=_edges([edge for state in states for edge in state.graph.connects]),
            connects_ptr=_offsets(len(state.graph.connects) for state in states),
            monitors=_edges([edge for state in states for edge in state.graph.monitors]),
            monitors_ptr=_offsets(len(state.graph.monitors) for state in states),
            blueprints=blueprints,
        )

    def to_states(
        self, hardware: HardwareContext, committed_accuracy: NDArray[np.float32] | None = None
    ) -> list[SystemState]:
        """Return wire states; ``committed_accuracy`` [N] is for final states only."""
        slots = [SeedState(**row) for row in _rows(self.slots, self._slot_codes())]
        kinds = {"kind": [LAYER_KINDS[index] for index in self.layers["kind"].tolist()]}
        layers = [LayerNode(**row) for row in _rows(self.layers, kinds)]
        system = list(_rows(self.system, {}))
        connects, monitors = self.connects.T.tolist(), self.monitors.T.tolist()
        histories = {
            name: [[x for x in row if x == x] for row in self.history[name].tolist()] for name in HISTORY_COLUMNS
        }
        return [
            SystemState(
                **system[i],
                **{name: values[i] for name, values in histories.items()},
                committed_validation_accuracy=None if committed_accuracy is None else float(committed_accuracy[i]),
                slots=slots[self.slot_ptr[i] : self.slot_ptr[i + 1]],
                graph=HostGraph(
                    layers=layers[self.layer_ptr[i] : self.layer_ptr[i + 1]],
                    connects=connects[self.connects_ptr[i] : self.connects_ptr[i + 1]],
                    monitors=monitors[self.monitors_ptr[i] : self.monitors_ptr[i + 1]],
                ),
                hardware=hardware,
            )
            for i in range(len(self))
        ]

    def _slot_codes(self) -> dict[str, list[Any]]:
        return {
            "stage": [STAGES[index] for index in self.slots["stage"].tolist()],
            "blueprint": [None if index < 0 else self.blueprints[index] for index in self.slots["blueprint"].tolist()],
        }


@dataclass(frozen=True)
class Masks:
    """Legal choices; the executor refuses all others."""

    op: NDArray[np.bool_]
    """[N, ops]"""
    slot: NDArray[np.bool_]
    """[S, ops]: whether the operation may address the slot; rows follow the observation's ``slot_ptr``."""
    blueprint: NDArray[np.bool_]
    """[N, K]"""

    def take(self, rows: NDArray[np.int64], slot_ptr: NDArray[np.int64]) -> Masks:
        """Return the masks of the given hosts; ``slot_ptr`` is that of the observation they belong to."""
        slots, _ = _ragged_rows(slot_ptr, rows)
        return Masks(self.op[rows], self.slot[slots], self.blueprint[rows])


@dataclass(frozen=True)
class Decisions:
    """One action per host with its log-probabilities."""

    actions: NDArray[np.int16]
    """[N, A] in the order of ``HEADS``: an index into the head's choices, -1 where irrelevant."""
    log_probs: NDArray[np.float32]
    """[N, A] natural logarithms; NaN where irrelevant."""


def relevance(ops: NDArray[np.int16]) -> NDArray[np.bool_]:
    """Return bool [N, A]: which heads operations [N] use."""
    table = np.array([[head in RELEVANT_HEADS[op] for head in HEADS] for op in OPS])
    return table[ops]


def action_of(row: NDArray[np.int16], blueprints: tuple[str, ...]) -> Action:
    """Return the wire form of one row [A] of actions."""
    op, slot, blueprint, target, speed, curve, tempo = row.tolist()
    return Action(
        op=OPS[op],
        slot=_pick(range(1024), slot),
        blueprint=_pick(blueprints, blueprint),
        alpha_target=_pick(ALPHA_TARGETS, target),
        alpha_speed=_pick(ALPHA_SPEEDS, speed),
        alpha_curve=_pick(ALPHA_CURVES, curve),
        tempo=_pick(TEMPOS, tempo),
    )


def log_prob_of(row: NDArray[np.float32]) -> BehaviourLogProb:
    """Return the wire form of one row [A] of log-probabilities."""
    values = {head.value: (None if np.isnan(x) else min(float(x), 0.0)) for head, x in zip(HEADS, row, strict=True)}
    return BehaviourLogProb(**values, joint=sum(x for x in values.values() if x is not None))


def masks_of(masks: Masks, host: int, slot_ptr: NDArray[np.int64], blueprints: tuple[str, ...]) -> ActionMasks:
    """Return the wire form of one host's masks."""
    slots = masks.slot[slot_ptr[host] : slot_ptr[host + 1]]
    return ActionMasks(
        op=masks.op[host].tolist(),
        slot=slots.T.tolist(),
        blueprint=[name for name, legal in zip(blueprints, masks.blueprint[host].tolist(), strict=True) if legal],
    )


def masks_to_columns(available: Sequence[ActionMasks], blueprints: tuple[str, ...]) -> Masks:
    """Return the columns of wire masks, the inverse of ``masks_of``.

    The wire has a slot mask per operation, a column has a row per slot. A name outside ``blueprints`` raises
    ContractError.
    """
    unknown = {name for masks in available for name in masks.blueprint} - set(blueprints)
    if unknown:
        raise ContractError(f"unknown blueprints {sorted(unknown)}; known blueprints: {', '.join(blueprints)}")
    slots = [np.array(masks.slot, dtype=np.bool_).T for masks in available]
    return Masks(
        op=np.array([masks.op for masks in available], dtype=np.bool_).reshape(-1, len(OPS)),
        slot=np.concatenate([np.empty((0, len(OPS)), dtype=np.bool_), *slots]),
        blueprint=np.array([[name in masks.blueprint for name in blueprints] for masks in available], dtype=np.bool_),
    )


def _pick(options: Sequence[Any], index: int) -> Any:
    return None if index < 0 else options[index]


def _check_table(name: str, table: Columns, expected: Mapping[str, DTypeLike], rows: int) -> None:
    if set(table) != set(expected):
        raise ContractError(f"{name}: columns differ by {sorted(set(table) ^ set(expected))}")
    for column, values in table.items():
        if values.shape != (rows,) or values.dtype != np.dtype(expected[column]):
            raise ContractError(
                f"{name}.{column}: expected {np.dtype(expected[column])} [{rows}], found {values.dtype} {values.shape}"
            )


def _columns(
    rows: Sequence[Any], dtypes: Mapping[str, DTypeLike], coded: Mapping[str, list[int]]
) -> dict[str, NDArray[Any]]:
    return {
        name: np.array(
            coded[name] if name in coded else [np.nan if (x := getattr(row, name)) is None else x for row in rows],
            dtype=dtype,
        )
        for name, dtype in dtypes.items()
    }


def _rows(table: Columns, coded: Mapping[str, list[Any]]) -> Iterable[dict[str, Any]]:
    columns: dict[str, list[Any]] = {}
    for name, values in table.items():
        if name in coded:
            columns[name] = coded[name]
        elif values.dtype.kind == "f":
            kind = int if name in _OPTIONAL_INTEGERS else float
            columns[name] = [kind(x) if x == x else None for x in values.tolist()]
        else:
            columns[name] = values.tolist()
    names = list(columns)
    return (dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True))


def _padded(histories: Sequence[Sequence[float]]) -> NDArray[np.float32]:
    out = np.full((len(histories), HISTORY_EPOCHS), np.nan, dtype=np.float32)
    for row, values in zip(out, histories, strict=True):
        if values:
            row[-len(values) :] = values
    return out


def _offsets(lengths: Iterable[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(np.fromiter(lengths, dtype=np.int64))]).astype(np.int64)


def _edges(pairs: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    return np.array(pairs, dtype=np.int64).reshape(-1, 2).T


def _stacked(tables: Sequence[Columns]) -> dict[str, NDArray[Any]]:
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def _stacked_offsets(offsets: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    lengths = np.concatenate([np.diff(ptr) for ptr in offsets])
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _ragged_rows(ptr: NDArray[np.int64], rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return flat indices of the given rows of a ragged table, and the offsets of the result."""
    lengths = ptr[rows + 1] - ptr[rows]
    out_ptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    flat = np.arange(out_ptr[-1]) + np.repeat(ptr[rows] - out_ptr[:-1], lengths)
    return flat, out_ptr
