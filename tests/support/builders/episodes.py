"""Episodes written by hand: every number in them is known."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from simic.contracts.actions import Action, AlphaCurve, Op
from simic.contracts.episode import EpisodeRecord, EpochRecord, SlotRecord, WatchReport
from simic.contracts.field_report import GovernorEvent, GovernorKind
from simic.contracts.lifecycle import SeedStage
from simic.contracts.splits import Split
from simic.contracts.state import HostIdentity

__all__ = ["EMPTY", "WAIT", "advance", "episode", "epoch", "germinate", "panicked", "slot", "watched"]

NOW = datetime(2026, 1, 2, tzinfo=UTC)
EMPTY = SlotRecord(stage=SeedStage.DORMANT, blueprint=None, alpha=0.0, contribution=None, contribution_error=None)
WAIT = Action(op=Op.WAIT)
PANIC = GovernorEvent(kind=GovernorKind.NON_FINITE, message="a loss or a parameter is not finite")
MITIGATION = ["rolled back to the last snapshot", "pruned live seeds", "ended the episode"]


def germinate(slot: int, blueprint: str = "gate") -> Action:
    return Action(op=Op.GERMINATE, slot=slot, blueprint=blueprint, tempo=5)


def advance(slot: int, speed: Any = 3) -> Action:
    return Action(
        op=Op.ADVANCE, slot=slot, alpha_target=0.7, alpha_speed=speed, alpha_curve=AlphaCurve.COSINE
    )  # fmt: skip


def slot(stage: SeedStage, blueprint: str = "gate", alpha: float = 0.0, gain: float | None = None) -> SlotRecord:
    """With a standard error of one point, where the gain was measured."""
    error = None if gain is None else 0.01
    return SlotRecord(stage=stage, blueprint=blueprint, alpha=alpha, contribution=gain, contribution_error=error)


def epoch(
    number: int, accuracy: float, action: Action = WAIT, slots: Sequence[SlotRecord] = (EMPTY, EMPTY, EMPTY)
) -> EpochRecord:
    return EpochRecord(
        epoch=number, action=action, slots=list(slots), validation_accuracy=accuracy, validation_loss=1.0,
        train_loss=1.25, governor=None, mitigation=[],
    )  # fmt: skip


def panicked(record: EpochRecord) -> EpochRecord:
    """The same epoch, undone by the governor."""
    return record.model_copy(update={"train_loss": None, "governor": PANIC, "mitigation": MITIGATION})


def episode(epochs: Sequence[EpochRecord], horizon: int = 20, controller: str = "random", **more: Any) -> EpisodeRecord:
    return EpisodeRecord.model_validate(
        {
            "host": HostIdentity(set="benchmark", family="cap", key=15),
            "controller": controller,
            "horizon": horizon,
            "start_accuracy": 0.1,
            "epochs": list(epochs),
            "committed_accuracy": 0.5,
            "test_accuracy": 0.4,
            "committed_parameters": 7,
            "return_points": 39.0,
            **more,
        }
    )


def watched(ours: EpisodeRecord, wait: EpisodeRecord) -> WatchReport:
    return WatchReport(
        code_version="0.1.0", config_digest="c" * 64, seed=0, started_at=NOW, finished_at=NOW, split=Split.TEST,
        policy_digest=None, episode=ours, wait=wait, over_wait=ours.return_points - wait.return_points,
        out_of_range=None,
    )  # fmt: skip
