"""A Grower's state, which ``torch.load`` reads with ``weights_only``, and its decisions as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter
from torch import Tensor, nn

from simic.contracts.batches import Decisions, Masks, Observations
from simic.contracts.errors import ContractError
from simic.contracts.feature_ranges import OutOfRange
from simic.hosts.custom.attached import AttachedHost, AttachedSeed

__all__ = [
    "VERSION",
    "Decision",
    "as_arrays",
    "from_arrays",
    "read_state",
    "seeds_of",
    "to_arrays",
    "to_tensors",
]

VERSION = 5
"""Version of a state."""
_TABLES = ("system", "history", "slots", "layers")
"""Tables of ``Observations`` that change from epoch to epoch."""
_OUT_OF_RANGE = TypeAdapter(list[OutOfRange])


class Decision(NamedTuple):
    """A decision of which the outcome is not known yet."""

    epoch: int
    observations: Observations
    masks: Masks
    decisions: Decisions
    out_of_range: tuple[OutOfRange, ...]

    def to_state(self) -> dict[str, Any]:
        """Return its part of a state."""
        return {
            "epoch": self.epoch,
            "decisions": to_tensors(vars(self.decisions)),
            "masks": to_tensors(vars(self.masks)),
            "out_of_range": _OUT_OF_RANGE.dump_json(list(self.out_of_range)).decode(),
            "tables": {name: to_tensors(getattr(self.observations, name)) for name in _TABLES},
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], like: Decision) -> Decision:
        """Return the decision that ``to_state`` wrote; ``like`` is another decision of such a Grower."""
        tables = {name: _alike(to_arrays(state["tables"][name]), getattr(like.observations, name)) for name in _TABLES}
        return cls(
            int(state["epoch"]),
            replace(like.observations, **cast(Any, tables)),
            Masks(**_alike(to_arrays(state["masks"]), vars(like.masks))),
            Decisions(**_alike(to_arrays(state["decisions"]), vars(like.decisions))),
            tuple(_OUT_OF_RANGE.validate_json(state["out_of_range"])),
        )


def _alike(arrays: dict[str, Any], others: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Return the arrays, or raise ValueError if their shapes and types are not those of ``others``."""
    for name, other in others.items():
        if (found := (arrays[name].shape, arrays[name].dtype)) != (other.shape, other.dtype):
            raise ValueError(f"expected {(other.shape, other.dtype)} as {name}, found {found}")
    return arrays


class Restored(NamedTuple):
    """What a state holds, read and checked."""

    run_id: str
    stride: int
    ensemble: dict[str, Any]
    decision: Decision
    seeds: dict[int, AttachedSeed]
    """By slot, on the device of the host."""


def read_state(
    state: Mapping[str, Any],
    layers: Sequence[str],
    made_for: Mapping[str, Any],
    like: Decision,
    horizon: int,
    host: AttachedHost,
) -> Restored:
    """Return what a state holds; nothing is changed.

    Args:
        state: The state, whose tensors may lie on any device.
        layers: Names of the layers of the graph.
        made_for: The arguments that must agree.
        like: The present decision of the Grower that resumes.
        horizon: Number of epochs.
        host: The host that is to hold the seeds.

    Raises:
        ContractError: if the state is of another version, of a Grower with other arguments, or damaged.
    """
    names = like.observations.blueprints
    try:
        _check_origin(state, layers, made_for, names, horizon)
        return Restored(
            str(state["run_id"]),
            int(state["stride"]),
            to_arrays(state["ensemble"]),
            Decision.from_state(state["decision"], like),
            {slot: _seed(slot, seed, host, names) for slot, seed in state["seeds"].items()},
        )
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise ContractError(
            f"state of a Grower: expected what its `state_dict` returned, found {type(error).__name__}: {error}; load "
            "another one, with tensors on a device that exists"
        ) from error


def _check_origin(
    state: Mapping[str, Any], layers: Sequence[str], made_for: Mapping[str, Any], names: Sequence[str], horizon: int
) -> None:
    """Raise ContractError unless the state is of this version and of a Grower with the same arguments."""
    if state.get("version") != VERSION or state.get("layers") != layers:
        found = f"version {state.get('version')} and layers {state.get('layers')}"
        raise ContractError(f"state of a Grower: expected version {VERSION} and layers {layers}, found {found}")
    for what, mine in made_for.items():
        if (theirs := state["made_for"][what]) != mine:
            raise ContractError(f"state of a Grower: expected {what} {mine!r} as here, found {theirs!r}")
    if unknown := {seed["blueprint"] for seed in state["seeds"].values()} - set(names):
        raise ContractError(f"state of a Grower: unknown blueprints {sorted(unknown)}; known: {', '.join(names)}")
    epochs = int(state["decision"]["tables"]["system"]["horizon"][0])
    if epochs != horizon:
        wanted = f"expected one of {horizon} epochs, found {epochs}; give epochs={epochs}"
        raise ContractError(f"state of a Grower: {wanted}")


def _seed(slot: int, saved: Mapping[str, Any], host: AttachedHost, names: Sequence[str]) -> AttachedSeed:
    """Return a seed that ``seeds_of`` returned."""
    blueprint = names.index(saved["blueprint"])
    wanted = (1, host.blueprints[blueprint].parameters(host.topology.sites[slot]))
    values = saved["parameters"]
    if tuple(values.shape) != wanted or values.dtype != torch.float32:
        found = f"{values.dtype} {tuple(values.shape)}"
        raise ContractError(f"state of a Grower: expected float32 {wanted} of the seed in slot {slot}, found {found}")
    device = host.host.spec.validation.inputs.device
    return AttachedSeed(blueprint, int(saved["number"]), nn.Parameter(values.detach().to(device, copy=True)))


def seeds_of(host: AttachedHost, names: Sequence[str]) -> dict[int, dict[str, Any]]:
    """Return the seeds of a host by slot; ``names`` are those of the blueprints in the order of the host."""
    return {
        slot: {"blueprint": names[seed.blueprint], "number": seed.number, "parameters": seed.parameters.detach()}
        for slot, seed in host.seeds.items()
    }


def as_arrays(decisions: Decisions, outside: tuple[OutOfRange, ...]) -> dict[str, NDArray[Any]]:
    """Return a decision with its findings as arrays."""
    return {**vars(decisions), "outside": np.frombuffer(_OUT_OF_RANGE.dump_json(list(outside)), dtype=np.uint8)}


def from_arrays(found: Mapping[str, NDArray[Any]]) -> tuple[Decisions, tuple[OutOfRange, ...]]:
    """Return what ``as_arrays`` took."""
    decisions = {name: column for name, column in found.items() if name != "outside"}
    return Decisions(**decisions), tuple(_OUT_OF_RANGE.validate_json(found["outside"].tobytes()))


def to_tensors(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by name with a copy of every array as a tensor."""
    return {
        name: torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value
        for name, value in values.items()
    }


def to_arrays(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by name with a copy of every tensor as an array."""
    return {name: _array(value) if isinstance(value, Tensor) else value for name, value in values.items()}


def _array(value: Tensor) -> NDArray[Any]:
    # ``torch.load`` may have put it on an accelerator.
    return value.detach().cpu().numpy().copy()
