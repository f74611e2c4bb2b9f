"""What happened inside a few episodes, epoch by epoch, for a person to look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.contracts.actions import Op
from simic.contracts.batches import STAGES, Observations, action_of
from simic.contracts.lifecycle import SeedStage
from simic.contracts.state import HostIdentity

if TYPE_CHECKING:
    from simic.hosts.rollout import Step

__all__ = ["Decision", "Lane", "Track", "tracks_of"]


class Decision(NamedTuple):
    """Anything but waiting."""

    epoch: int
    """Epochs trained before it was taken."""
    op: Op
    slot: int


class Lane(NamedTuple):
    """One slot during one epoch, as it stood when the epoch had been trained."""

    epoch: int
    """The epoch, from 0."""
    slot: int
    stage: SeedStage
    alpha: float
    blueprint: str | None


class Track(NamedTuple):
    """One episode."""

    host: HostIdentity
    slots: int
    accuracy: list[float]
    """Validation accuracy after 0, 1, ... epochs; the last one is that of the network to be kept."""
    lanes: list[Lane]
    """Slots that are not empty."""
    decisions: list[Decision]


def tracks_of(steps: Sequence[Step], hosts: Sequence[HostIdentity]) -> list[Track]:
    """One track per host of a finished rollout."""
    return [_track(steps, row, host) for row, host in enumerate(hosts)]


def _track(steps: Sequence[Step], row: int, host: HostIdentity) -> Track:
    own = [step for step in steps if step.live[row]]
    first = own[0].observations
    accuracy = [float(first.system["validation_accuracy"][row])]
    lanes: list[Lane] = []
    decisions: list[Decision] = []
    for step in own:
        accuracy.append(_accuracy_after(step, row))
        lanes += _lanes(step.after, row, step.epoch)
        action = action_of(step.decisions.actions[row], step.observations.blueprints)
        if action.slot is not None:
            decisions.append(Decision(step.epoch, action.op, action.slot))
    return Track(host, int(first.slot_ptr[row + 1] - first.slot_ptr[row]), accuracy, lanes, decisions)


def _accuracy_after(step: Step, row: int) -> float:
    columns: tuple[NDArray[np.float32], ...] = (
        step.outcome.committed_validation_accuracy,
        step.outcome.validation_accuracy_after,
    )
    committed, running = (float(column[row]) for column in columns)
    return committed if step.outcome.terminated[row] and np.isfinite(committed) else running


def _lanes(after: Observations, row: int, epoch: int) -> list[Lane]:
    start, end = int(after.slot_ptr[row]), int(after.slot_ptr[row + 1])
    return [
        Lane(
            epoch,
            slot,
            STAGES[int(after.slots["stage"][start + slot])],
            float(after.slots["alpha"][start + slot]),
            None if (code := int(after.slots["blueprint"][start + slot])) < 0 else after.blueprints[code],
        )
        for slot in range(end - start)
        if STAGES[int(after.slots["stage"][start + slot])] is not SeedStage.DORMANT
    ]
