"""Slots as columns, and the transitions of their lifecycle.

Shapes: N hosts, S slots.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from simic.contracts.actions import ALPHA_CURVES, AlphaCurve, Op
from simic.contracts.batches import OP_INDEX, STAGE_INDEX, STAGES
from simic.contracts.errors import IllegalActionError
from simic.contracts.lifecycle import ALIVE_STAGES, TRANSITIONS, SeedStage, Transition, Trigger

__all__ = ["SLOT_FIELDS", "Slots", "automatic", "progress", "ramp"]

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
"""Dtype and value in an unused slot. Ramps count in epochs. The running means of the contribution and of its error are
``contribution_sum`` and ``contribution_error_sum`` over ``contribution_weight``."""


def _moves() -> NDArray[np.int8]:
    """Return int8 [stages, triggers, ops + 1]: the target stage, or -1."""
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
    """Return the transitions that happen at the end of an epoch."""
    return tuple(row for row in TRANSITIONS if row.trigger in (Trigger.EPOCH, Trigger.FADED))


class Slots:
    """All slots of N hosts: one column [N, S] per entry of ``SLOT_FIELDS``, read as ``slots[name]``."""

    def __init__(self, hosts: int, slots: int) -> None:
        self.columns: dict[str, NDArray[Any]] = {
            name: np.full((hosts, slots), empty, dtype=dtype) for name, (dtype, empty) in SLOT_FIELDS.items()
        }

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    def is_in(self, *stages: SeedStage) -> NDArray[np.bool_]:
        """Return bool [N, S]: the stage is one of ``stages``."""
        mask: NDArray[np.bool_] = np.isin(self["stage"], [STAGE_INDEX[stage] for stage in stages])
        return mask

    @property
    def is_alive(self) -> NDArray[np.bool_]:
        """Return bool [N, S]: a seed trains, pays rent and can be pruned."""
        alive: NDArray[np.bool_] = _ALIVE[self["stage"]]
        return alive

    @property
    def is_fading(self) -> NDArray[np.bool_]:
        """Return bool [N, S]: a seed's alpha is ramping to 0."""
        fading: NDArray[np.bool_] = self.is_in(SeedStage.BLENDING) & (self["alpha_target"] == 0.0)
        return fading

    @property
    def is_paying(self) -> NDArray[np.bool_]:
        """Return bool [N, S]: a seed is alive or fossilised, so the host pays rent for it."""
        paying: NDArray[np.bool_] = _PAYING[self["stage"]]
        return paying

    def move(self, where: NDArray[np.bool_], trigger: Trigger, op: Op | None = None) -> None:
        """Apply one transition to the slots ``where`` [N, S]; raise IllegalActionError if the table has no such row."""
        targets = _TABLE[self["stage"][where], _TRIGGERS[trigger], _op_index(op)]
        if (targets < 0).any():
            stage = STAGES[int(self["stage"][where][np.argmax(targets < 0)])]
            raise IllegalActionError(
                f"no transition from {stage.value} by {trigger.value} {op.value if op else ''}".strip()
            )
        self["stage"][where] = targets
        self["stage_epochs"][where] = 0
        pruned = where & self.is_in(SeedStage.PRUNED)
        self._set(pruned, "parameters", "alpha", "alpha_start", "alpha_target", "gradient_norm", "gradient_health")
        self._set(pruned, "contribution", "contribution_error", "contribution_epochs", "risk")

    def clear(self, where: NDArray[np.bool_]) -> None:
        """Reset the slots ``where`` [N, S] to unused, except their stage and its age."""
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
        """Start a ramp from the present alpha; arrays hold one value per chosen slot."""
        self["alpha_start"][where] = self["alpha"][where]
        self["alpha_target"][where] = target
        self["ramp_epochs"][where] = epochs
        self["ramp_curve"][where] = curve
        self["ramp_done"][where] = 0

    def grow_older(self, live: NDArray[np.bool_]) -> None:
        """Count one epoch for the hosts ``live`` [N]."""
        self["stage_epochs"][live] += 1
        self["age_epochs"][self.is_paying & live[:, None]] += 1

    def digest(self, host: int, slot: int) -> str:
        """Return the SHA-256 over one slot's columns, except the age of its stage."""
        fields = [self[name][host, slot].tobytes() for name in SLOT_FIELDS if name != "stage_epochs"]
        return hashlib.sha256(b"".join(fields)).hexdigest()


_STEEPNESS = 8.0
"""Steepness of the sigmoid: 1.8 % of its range lies outside at either end; it is rescaled to reach 0 and 1."""


def progress(share: ArrayLike, curve: ArrayLike) -> NDArray[np.float64]:
    """Return the share of the way to the target after a share of the ramp; 0 at 0, 1 at 1, never decreasing."""
    x = np.clip(np.asarray(share, dtype=np.float64), 0.0, 1.0)
    edge = 1.0 / (1.0 + np.exp(_STEEPNESS / 2.0))
    shapes = {
        AlphaCurve.LINEAR: x,
        AlphaCurve.COSINE: (1.0 - np.cos(np.pi * x)) / 2.0,
        AlphaCurve.SIGMOID: (1.0 / (1.0 + np.exp(-_STEEPNESS * (x - 0.5))) - edge) / (1.0 - 2.0 * edge),
    }
    chosen: NDArray[Any] = np.choose(np.asarray(curve), [shapes[name] for name in ALPHA_CURVES])
    return np.where(x >= 1.0, 1.0, chosen)


def ramp(
    start: ArrayLike, target: ArrayLike, done: ArrayLike, epochs: ArrayLike, curve: ArrayLike
) -> NDArray[np.float32]:
    """Return alpha in the ``done``-th epoch of a ramp, counted from 1; a ramp of 0 epochs is at its target at once."""
    length = np.maximum(np.asarray(epochs), 1)
    way = progress(np.asarray(done) / length, curve)
    start, target = np.asarray(start, dtype=np.float64), np.asarray(target, dtype=np.float64)
    return np.where(way >= 1.0, target, start + (target - start) * way).astype(np.float32)
