"""The whole loop: experience in, a gated and signed policy out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from prefect import flow
from prefect.client.schemas.objects import State

from flows.ephemeral import require_api
from simic.contracts.receipts import RunReceipt
from simic.runtime.progress import NoProgress, Progress
from tasks.session import open_session, shown_on

__all__ = ["run", "simic"]


@flow(name="simic", flow_run_name="{profile}-s{seed}")
def simic(profile: str = "nightly", seed: int = 0, overrides: dict[str, Any] | None = None) -> State[RunReceipt]:
    """Collect? > ingest > curate > train, rounds of own episodes, then validate > gate > promote > publish.

    Without a champion the first experience is our own; with one, training starts from it, on all that has landed.
    """
    with open_session(profile, seed, overrides or {}) as run_:
        collected = run_.collect(0, policy=None) if run_.is_cold else None
        snapshot = run_.curate(0, run_.ingest(0, collected))
        policy = run_.train(0, snapshot, previous=None)

        for number in run_.rounds:
            collected = run_.collect(number, policy)
            snapshot = run_.curate(number, run_.ingest(number, collected))
            policy = run_.train(number, snapshot, previous=policy)

        report = run_.validate(policy)
        decision = run_.decide(report)
        candidate = run_.record(report, decision)
        if not decision.accepted:
            return run_.finish(report, decision)
        version = run_.promote(candidate, decision)
        publication = run_.publish(version)
        return run_.finish(report, decision, version, publication)


def run(
    *, profile: str, seed: int, overrides: Mapping[str, Any] | None = None, progress: Progress | None = None
) -> RunReceipt:
    """The same flow in this process, for the command line; returns the receipt of the whole."""
    require_api()
    with shown_on(progress or NoProgress()):
        # A flow that returns a state hands its caller the state's data.
        return cast("RunReceipt", simic(profile=profile, seed=seed, overrides=dict(overrides or {})))
