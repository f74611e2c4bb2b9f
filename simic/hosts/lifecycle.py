"""Slots as columns, and the one engine that moves them along the table of transitions.

Shapes: N hosts, S slots.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from simic.contracts.actions import Op
from simic.contracts.batches import OP_INDEX, STAGE_INDEX, STAGES
from simic.contracts.errors import IllegalAction
from simic.contracts.lifecycle import ALIVE_STAGES, TRANSITIONS, SeedStage, Transition, Trigger

__all__ = [
    "AUTOMATIC_SPEED",
    "EMBARGO_EPOCHS",
    "HOLDING_DWELL",
    "SLOT_FIELDS",
    "TRAINING_DWELL",
    "Slots",
    "automatic",
]

TRAINING_DWELL: Final = 1
"""Epochs before a seed may blend."""
HOLDING_DWELL: Final = 1
"""Epochs before a held seed may be kept or retargeted."""
EMBARGO_EPOCHS: Final = 2
AUTOMATIC_SPEED: Final = 3
"""Epochs of the linear ramp to alpha 1 that begins by itself when a seed's tempo has run out."""

SLOT_FIELDS: dict[str, tuple[DTypeLike, float]] = {
    "stage": (np.int8, STAGE_INDEX[SeedStage.DORMANT]),
    "blueprint": (np.int16, -1),
    "stage_epochs": (np.int32, 0),
    "age_epochs": (np.int32, -1),
    "tempo": (np.int32, -1),
    "parameters": (np.int32, 0),
    "alpha": (np.float32, 0.0),
    "alpha_start": (np.float32, 0.0),
    "alpha_target": (np.float32, np.nan),
    "ramp_epochs": (np.int32, 0),
    "ramp_done": (np.int32, 0),
    "ramp_curve": (np.int8, 0),
    "gradient_norm": (np.float32, np.nan),
    "gradient_health": (np.float32, np.nan),
    "contribution": (np.float32, np.nan),
    "contribution_sum": (np.float64, 0.0),
    "contribution_weight": (np.float64, 0.0),
    "contribution_error": (np.float32, np.nan),
    "contribution_error_sum": (np.float64, 0.0),
    "contribution_epochs": (np.int32, -1),
    "risk": (np.float32, np.nan),
}
"""Type and value in a slot never used; ramps count in epochs; the averages of the contribution and of its error are
``contribution_sum`` and ``contribution_error_sum`` over ``contribution_weight``."""


def _moves() -> NDArray[np.int8]:
    """[stage, trigger, op + 1] -> target stage, or -1."""
    table = np.full((len(STAGES), len(Trigger), len(OP_INDEX) + 1), -1, dtype=np.int8)
    for row in TRANSITIONS:
        table[STAGE_INDEX[row.source], _TRIGGERS[row.trigger], _op_index(row.op)] = STAGE_INDEX[row.target]
    return table


def _op_index(op: Op | None) -> int:
    return -1 if op is None else OP_INDEX[op]


_TRIGGERS = {trigger: index for index, trigger in enumerate(Trigger)}
_TABLE = _moves()
_ALIVE = np.array([stage in ALIVE_STAGES for stage in STAGES])
_PAYING = np.array([stage in ALIVE_STAGES or stage is SeedStage.FOSSILIZED for stage in STAGES])


def automatic() -> tuple[Transition, ...]:
    """Moves that happen at the end of an epoch."""
    return tuple(row for row in TRANSITIONS if row.trigger in (Trigger.EPOCH, Trigger.FADED))


class Slots:
    """All slots of N hosts; every column of ``SLOT_FIELDS`` is an attribute-like entry [N, S]."""

    def __init__(self, hosts: int, slots: int) -> None:
        self.columns: dict[str, NDArray[Any]] = {
            name: np.full((hosts, slots), empty, dtype=dtype) for name, (dtype, empty) in SLOT_FIELDS.items()
        }

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    def is_in(self, *stages: SeedStage) -> NDArray[np.bool_]:
        """Where the stage is one of these, [N, S]."""
        found: NDArray[np.bool_] = np.isin(self["stage"], [STAGE_INDEX[stage] for stage in stages])
        return found

    @property
    def is_alive(self) -> NDArray[np.bool_]:
        """Where a seed trains, pays and can be pruned, [N, S]."""
        alive: NDArray[np.bool_] = _ALIVE[self["stage"]]
        return alive

    @property
    def is_fading(self) -> NDArray[np.bool_]:
        """Where a seed's alpha is on its way to 0, [N, S]."""
        fading: NDArray[np.bool_] = self.is_in(SeedStage.BLENDING) & (self["alpha_target"] == 0.0)
        return fading

    @property
    def is_paying(self) -> NDArray[np.bool_]:
        """Where a seed is alive or kept for good, [N, S]."""
        paying: NDArray[np.bool_] = _PAYING[self["stage"]]
        return paying

    def move(self, where: NDArray[np.bool_], trigger: Trigger, op: Op | None = None) -> None:
        """Move the slots ``where`` [N, S] along the table; one that has no such row is an IllegalAction."""
        targets = _TABLE[self["stage"][where], _TRIGGERS[trigger], _op_index(op)]
        if (targets < 0).any():
            stage = STAGES[int(self["stage"][where][np.argmax(targets < 0)])]
            raise IllegalAction(f"no transition from {stage.value} by {trigger.value} {op.value if op else ''}".strip())
        self["stage"][where] = targets
        self["stage_epochs"][where] = 0
        pruned = where & self.is_in(SeedStage.PRUNED)
        self._set(pruned, "parameters", "alpha", "alpha_start", "alpha_target", "gradient_norm", "gradient_health")
        self._set(pruned, "contribution", "contribution_error", "contribution_epochs", "risk")

    def clear(self, where: NDArray[np.bool_]) -> None:
        """Make slots as if never used, but for their stage and its age."""
        self._set(where, *(name for name in SLOT_FIELDS if name not in ("stage", "stage_epochs")))

    def _set(self, where: NDArray[np.bool_], *names: str) -> None:
        for name in names:
            self[name][where] = SLOT_FIELDS[name][1]

    def start_ramp(
        self,
        where: NDArray[np.bool_],
        target: NDArray[Any] | float,
        epochs: NDArray[Any] | int,
        curve: NDArray[Any] | int,
    ) -> None:
        """Let alpha move from where it is; values are per chosen slot."""
        self["alpha_start"][where] = self["alpha"][where]
        self["alpha_target"][where] = target
        self["ramp_epochs"][where] = epochs
        self["ramp_curve"][where] = curve
        self["ramp_done"][where] = 0

    def grow_older(self, live: NDArray[np.bool_]) -> None:
        """One epoch has passed for the hosts ``live`` [N]."""
        self["stage_epochs"][live] += 1
        self["age_epochs"][self.is_paying & live[:, None]] += 1

    def digest(self, host: int, slot: int) -> str:
        """SHA-256 over one slot's columns, but for the age of its stage."""
        fields = [self[name][host, slot].tobytes() for name in SLOT_FIELDS if name != "stage_epochs"]
        return hashlib.sha256(b"".join(fields)).hexdigest()
