"""Convert one step of many hosts to one field report per host: pure, without clock or files.

Shapes: N hosts of the ensemble, R hosts that ran this step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.collection.branching import Branch
from simic.contracts.actions import RELEVANT_HEADS
from simic.contracts.batches import action_of, log_prob_of, masks_of
from simic.contracts.field_report import FieldReport, Outcome, StepMetrics
from simic.contracts.settings.run import EpisodeStopConfig, WorldConfig
from simic.contracts.state import HardwareContext, HostIdentity, SystemState
from simic.hosts.ensemble import StepOutcome
from simic.hosts.rollout import Step
from simic.hosts.world_identity import world_identity
from simic.trust.canonical import digest_of

__all__ = ["NOTICEABLE", "Source", "branch_ids", "field_reports", "run_ids", "short_id"]

NOTICEABLE = 0.005
"""Least change in validation accuracy that counts as success or regression."""


class Source(NamedTuple):
    """Fields that all reports of one ensemble share."""

    controller: str
    policy_version: str | None
    hosts: Sequence[HostIdentity]
    run_ids: Sequence[str]
    hardware: HardwareContext
    issued_at: datetime
    branches: Sequence[Branch] = ()
    """The branch that each host grows; empty for ordinary episodes."""
    trial_id: str | None = None
    """The trial that the episodes judge in, if they do."""
    judgement: int | None = None
    """Number of the judgement of that trial, if it has one."""


def short_id(text: str) -> str:
    """Return the first 32 hexadecimal characters of the SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def run_ids(
    hosts: Sequence[HostIdentity],
    controller: str,
    policy_version: str | None,
    seed: int,
    world: WorldConfig,
    *,
    is_decisive: bool = False,
    stop: EpisodeStopConfig | None = None,
) -> list[str]:
    """Return one id per host; equal episodes have equal ids, so collecting twice adds nothing.

    The id covers the simulation's code and settings, so an episode of changed hosts has another id. A policy's
    decisive episodes have other ids than its sampled ones, and those that may end early by ``stop`` than others.
    """
    acting = {"controller": controller, "policy_version": policy_version, "seed": seed}
    stops = {} if stop is None or stop.fall is None else {"stop": stop.model_dump(mode="json")}
    shared = {**acting, **({"is_decisive": True} if is_decisive else {}), **stops, "world": world_identity(world)}
    return [digest_of({"set": host.set, "key": host.key, **shared})[:32] for host in hosts]


def branch_ids(branches: Sequence[Branch]) -> list[str]:
    """Return one id per branch; the parent's id covers host, controller, seed and world."""
    return [
        digest_of({"parent": branch.parent, "step": branch.step, "action": list(branch.action)})[:32]
        for branch in branches
    ]


def field_reports(
    step: Step, source: Source, cut_off: NDArray[np.bool_] | None = None
) -> Iterator[tuple[int, FieldReport]]:
    """Yield host index and report for every host that ran this step, in host order.

    ``cut_off`` bool [N] says which episodes were cut off after this step; None is none.
    """
    rows = np.flatnonzero(step.live)
    if not len(rows):
        return
    states = step.observations.take(rows).to_states(source.hardware)
    finals = _final_states(step, rows, source.hardware, cut_off)
    metrics = _metrics(step.outcome, rows)
    blueprints, slot_ptr = step.observations.blueprints, step.observations.slot_ptr
    for row, state, measured in zip(rows.tolist(), states, metrics, strict=True):
        run_id, outcome = source.run_ids[row], step.outcome
        action = action_of(step.decisions.actions[row], blueprints)
        seed_id = outcome.seed_ids[row]
        branch = source.branches[row] if source.branches else None
        yield (
            row,
            FieldReport(
                report_id=short_id(f"{run_id}:{step.epoch}"),
                run_id=run_id,
                command_id=short_id(f"{run_id}:{step.epoch}:command"),
                step=step.epoch,
                controller=source.controller,
                policy_version=source.policy_version,
                host=source.hosts[row],
                state=state,
                available=masks_of(step.masks, row, slot_ptr, blueprints),
                action=action,
                relevant=list(RELEVANT_HEADS[action.op]),
                log_prob_behaviour=log_prob_of(step.decisions.log_probs[row]),
                outcome=_outcome(measured, outcome.governor[row] is not None),
                metrics=measured,
                terminated=bool(outcome.terminated[row]),
                truncated=cut_off is not None and bool(cut_off[row]),
                governor=outcome.governor[row],
                seed_id=None if seed_id is None else f"{run_id}/{seed_id}",
                blueprint_id=outcome.blueprint_ids[row],
                mitigation=outcome.mitigation[row],
                issued_at=source.issued_at,
                final_state=finals.get(row),
                branch_of=None if branch is None else branch.parent,
                branch_step=None if branch is None else branch.step,
                trial_id=source.trial_id,
                judgement=source.judgement,
            ),
        )


def _final_states(
    step: Step, rows: NDArray[np.int64], hardware: HardwareContext, cut_off: NDArray[np.bool_] | None
) -> dict[int, SystemState]:
    """Return the last state of each episode that ended or was cut off, by host."""
    by_host: dict[int, SystemState] = {}
    ended = rows[step.outcome.terminated[rows]]
    cut = np.zeros(0, dtype=np.int64) if cut_off is None else rows[cut_off[rows]]
    for some, committed in ((ended, step.outcome.committed_validation_accuracy[ended]), (cut, None)):
        if len(some):
            states = step.after.take(some).to_states(hardware, committed)
            by_host.update(zip(some.tolist(), states, strict=True))
    return by_host


def _metrics(outcome: StepOutcome, rows: NDArray[np.int64]) -> list[StepMetrics]:
    columns = (
        outcome.validation_accuracy_before,
        outcome.validation_accuracy_after,
        outcome.validation_loss_before,
        outcome.validation_loss_after,
        outcome.rent_parameters,
        outcome.committed_parameters,
        outcome.test_accuracy,
    )
    return [
        StepMetrics(
            validation_accuracy_before=before,
            validation_accuracy_after=after,
            validation_loss_before=loss_before,
            validation_loss_after=loss_after,
            rent_parameters=rent,
            committed_parameters=committed,
            test_accuracy=None if np.isnan(test) else test,
        )
        for before, after, loss_before, loss_after, rent, committed, test in zip(
            *(column[rows].tolist() for column in columns), strict=True
        )
    ]


def _outcome(metrics: StepMetrics, is_aborted: bool) -> Outcome:
    if is_aborted:
        return Outcome.ABORTED
    change = metrics.validation_accuracy_after - metrics.validation_accuracy_before
    if change >= NOTICEABLE:
        return Outcome.SUCCESS
    return Outcome.REGRESSION if change <= -NOTICEABLE else Outcome.NEUTRAL
