"""Valid examples of contracts, for people who write reports with their own tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from hashlib import sha256

from simic.contracts.actions import Action, ActionMasks, BehaviourLogProb, Head, Op
from simic.contracts.base import Contract
from simic.contracts.field_report import FieldReport, Outcome, StepMetrics
from simic.contracts.lifecycle import SeedStage
from simic.contracts.state import (
    HardwareContext,
    HostGraph,
    HostIdentity,
    LayerKind,
    LayerNode,
    SeedState,
    SystemState,
)

__all__ = ["EXAMPLES", "example_field_report"]


def example_field_report() -> FieldReport:
    """Return step 2 of an episode: a seed of blueprint dense is placed into slot 0 of a host with three slots."""
    run_id, before, after = _id("run"), 0.366, 0.387
    empty = SeedState(stage=SeedStage.DORMANT, stage_epochs=2)
    state = SystemState(
        epoch=2,
        horizon=20,
        seeds_alive=0,
        seeds_max=1,
        seed_parameters=0,
        train_loss=1.229,
        train_accuracy=0.404,
        validation_loss=1.634,
        validation_accuracy=before,
        train_loss_history=[1.844, 1.229],
        validation_loss_history=[2.079, 1.86, 1.634],
        validation_accuracy_history=[0.1, 0.34, before],
        slots=[empty, empty, empty],
        graph=HostGraph(
            layers=[
                LayerNode(kind=LayerKind.STEM, width=16, is_linear=False),
                LayerNode(kind=LayerKind.BLOCK, width=16, hidden_width=24, is_linear=False),
                LayerNode(kind=LayerKind.BLOCK, width=16, hidden_width=24, is_linear=False),
                LayerNode(kind=LayerKind.HEAD, width=10, is_linear=True),
            ],
            connects=[(0, 1), (1, 2), (2, 3)],
            monitors=[(0, 0), (1, 1), (2, 2)],
        ),
        hardware=HardwareContext(device="cpu", threads=1),
    )
    germinate = list(Op).index(Op.GERMINATE)
    return FieldReport(
        report_id=_id("report"),
        run_id=run_id,
        command_id=_id("command"),
        step=2,
        controller="explore",
        host=HostIdentity(set="benchmark", family="cap", key=0),
        state=state,
        available=ActionMasks(
            op=[op in (Op.WAIT, Op.GERMINATE) for op in Op],
            slot=[[index == germinate] * 3 for index in range(len(Op))],
            blueprint=["bottleneck", "dense", "dropout", "gate", "heavy", "norm"],
        ),
        action=Action(op=Op.GERMINATE, slot=0, blueprint="dense", tempo=3),
        relevant=[Head.OP, Head.SLOT, Head.BLUEPRINT, Head.TEMPO],
        log_prob_behaviour=BehaviourLogProb(op=-0.5, slot=-1.0, blueprint=-1.75, tempo=-1.25, joint=-4.5),
        outcome=Outcome.SUCCESS,
        metrics=StepMetrics(
            validation_accuracy_before=before,
            validation_accuracy_after=after,
            validation_loss_before=1.634,
            validation_loss_after=1.58,
            rent_parameters=280,
            committed_parameters=0,
        ),
        terminated=False,
        truncated=False,
        seed_id=f"{run_id}/0/1",
        blueprint_id="dense",
        mitigation=[],
        issued_at=datetime(2026, 1, 5, 12, 0, 2, tzinfo=UTC),
    )


def _id(name: str) -> str:
    return sha256(name.encode()).hexdigest()[:32]


EXAMPLES: Mapping[str, Callable[[], Contract]] = {"FieldReport": example_field_report}
"""Function that makes the example, by name of the contract."""
