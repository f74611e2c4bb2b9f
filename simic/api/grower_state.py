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
    "check_state",
    "from_arrays",
    "place_seeds",
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

    def saved(self) -> dict[str, Any]:
        """Return its part of a state."""
        return {
            "epoch": self.epoch,
            "decisions": to_tensors(vars(self.decisions)),
            "masks": to_tensors(vars(self.masks)),
            "out_of_range": _OUT_OF_RANGE.dump_json(list(self.out_of_range)).decode(),
            "tables": {name: to_tensors(getattr(self.observations, name)) for name in _TABLES},
        }

    @classmethod
    def restored(cls, saved: Mapping[str, Any], present: Observations) -> Decision:
        """Return what ``saved`` returned; ``present`` has the tables that never change."""
        tables = {name: to_arrays(saved["tables"][name]) for name in _TABLES}
        return cls(
            saved["epoch"],
            replace(present, **cast(Any, tables)),
            Masks(**to_arrays(saved["masks"])),
            Decisions(**to_arrays(saved["decisions"])),
            tuple(_OUT_OF_RANGE.validate_json(saved["out_of_range"])),
        )


def check_state(
    state: Mapping[str, Any], layers: Sequence[str], made_for: Mapping[str, Any], names: Sequence[str], horizon: int
) -> None:
    """Raise ContractError unless the state is of this version and of a Grower with the same arguments.

    Args:
        state: The state.
        layers: Names of the layers of the graph.
        made_for: The arguments that must agree.
        names: Names of the known blueprints.
        horizon: Number of epochs.
    """
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


def seeds_of(host: AttachedHost, names: Sequence[str]) -> dict[int, dict[str, Any]]:
    """Return the seeds of a host by slot; ``names`` are those of the blueprints in the order of the host."""
    return {
        slot: {"blueprint": names[seed.blueprint], "number": seed.number, "parameters": seed.parameters.detach()}
        for slot, seed in host.seeds.items()
    }


def place_seeds(seeds: Mapping[int, Mapping[str, Any]], host: AttachedHost, names: Sequence[str]) -> None:
    """Put the seeds that ``seeds_of`` returned into a host without seeds."""
    device = host.host.spec.validation.inputs.device
    for slot, seed in seeds.items():
        parameters = nn.Parameter(seed["parameters"].clone().to(device))
        host.place(slot, AttachedSeed(names.index(seed["blueprint"]), seed["number"], parameters))


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
    return {name: value.numpy().copy() if isinstance(value, Tensor) else value for name, value in values.items()}
