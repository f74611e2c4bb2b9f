"""The whole loop: from experience to a judged and signed policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows.crashed_runs import living
from simic.app.runs import open_run
from simic.contracts.results.run import RunReceipt
from simic.runtime.home import resolve_home
from simic.runtime.progress import NoProgress, Progress
from simic.validation.promotion_gate import rejection_message
from tasks import stages
from tasks.artifacts import show_champion

__all__ = ["run", "simic"]


@flow(name="simic", flow_run_name="{profile}-s{seed}")
def simic(profile: str = "nightly", seed: int = 0, overrides: dict[str, Any] | None = None) -> State[RunReceipt]:
    """Collect? > ingest > curate > train, rounds of own episodes, then trials > gate > promote > publish.

    Without a champion the run first collects experience of its own; with one, training starts from the champion, on all
    experience that has landed.
    """
    with living(resolve_home(), "simic"), open_run(profile, seed, overrides or {}) as opened:
        key = opened.key
        policy = opened.learn(stages)
        further = [stages.try_further(key, 0, policy, name, opened.judged_with()) for name in opened.further_sets]
        report = stages.validate(key, 0, policy, further)
        decision = stages.decide(key, 0, report)
        candidate = stages.record(key, 0, report, decision)
        version = publication = None
        if decision.accepted:
            version = stages.promote(key, 0, candidate, report, decision)
            publication = stages.publish(key, 0, version)
        receipt = opened.finish(report, decision, version, publication)
        show_champion(opened.champion, candidate, decision)
        return _verdict(receipt)


def _verdict(receipt: RunReceipt) -> State[RunReceipt]:
    """Return the final state of a run; a rejection is a result, not a failure."""
    if receipt.version is None:
        return Completed(name="Rejected", data=receipt, message=rejection_message(receipt.decision))
    version = receipt.version
    return Completed(data=receipt, message=f"promoted {version.semantic_version} ({version.digest[:12]})")


def run(
    *, profile: str, seed: int, overrides: Mapping[str, Any] | None = None, progress: Progress | None = None
) -> RunReceipt:
    """Run the flow in this process and return the receipt of the run, for the command line."""
    with stages.showing_progress(progress or NoProgress()):
        # A flow that returns a state hands its caller the state's data.
        return cast("RunReceipt", simic(profile=profile, seed=seed, overrides=dict(overrides or {})))
