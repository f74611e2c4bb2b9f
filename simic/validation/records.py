"""What happened inside an episode, epoch by epoch, for a person to look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from simic.contracts.batches import STAGES, Observations, action_of
from simic.contracts.episode import EpisodeRecord, EpochRecord, SlotRecord
from simic.contracts.state import HostIdentity

if TYPE_CHECKING:
    from simic.hosts.rollout import Step
    from simic.validation.episodes import Episodes

__all__ = ["episode_record", "epoch_record"]


def epoch_record(step: Step, row: int) -> EpochRecord:
    """Host ``row`` of a step in which it was live.

    Where the governor undid the epoch, what the observation still shows of training and contributions belongs to the
    epoch before, so it is left out.
    """
    outcome, system = step.outcome, step.after.system
    event = outcome.governor[row]
    return EpochRecord(
        epoch=step.epoch,
        action=action_of(step.decisions.actions[row], step.observations.blueprints),
        slots=_slots(step.after, row, is_measured=event is None),
        validation_accuracy=system["validation_accuracy"][row],
        validation_loss=system["validation_loss"][row],
        train_loss=None if event is not None else _number(system["train_loss"][row]),
        governor=event,
        mitigation=outcome.mitigation[row],
    )


def episode_record(
    steps: Sequence[Step], row: int, host: HostIdentity, controller: str, results: Episodes
) -> EpisodeRecord:
    """Host ``row`` of a finished rollout; ``results`` are those of ``score`` over the same steps."""
    own = [step for step in steps if step.live[row]]
    first = own[0].observations.system
    return EpisodeRecord(
        host=host,
        controller=controller,
        horizon=first["horizon"][row],
        start_accuracy=first["validation_accuracy"][row],
        epochs=[epoch_record(step, row) for step in own],
        committed_accuracy=results.validation_accuracy[row],
        test_accuracy=results.test_accuracy[row],
        committed_parameters=results.committed_parameters[row],
        return_points=results.returns[row],
    )


def _slots(after: Observations, row: int, *, is_measured: bool) -> list[SlotRecord]:
    here = slice(int(after.slot_ptr[row]), int(after.slot_ptr[row + 1]))
    names = ("stage", "blueprint", "alpha", "contribution", "contribution_error")
    columns = (after.slots[name][here].tolist() for name in names)
    return [
        SlotRecord(
            stage=STAGES[stage],
            blueprint=None if blueprint < 0 else after.blueprints[blueprint],
            alpha=alpha,
            contribution=_number(contribution) if is_measured else None,
            contribution_error=_number(error) if is_measured else None,
        )
        for stage, blueprint, alpha, contribution, error in zip(*columns, strict=True)
    ]


def _number(value: Any) -> float | None:
    return None if np.isnan(value) else float(value)
