"""One thin task per verb: receipts in, a receipt out. What a stage does is written in ``simic``."""

from __future__ import annotations

from prefect import task

from simic.app import App
from simic.contracts.receipts import (
    CollectionReceipt,
    GateDecision,
    IngestReceipt,
    PolicyVersion,
    PublicationReceipt,
    SnapshotManifest,
    TrainingReport,
    ValidationReport,
)
from tasks.policy import stage_options

__all__ = ["collect", "curate", "decide", "ingest", "promote", "publish", "record", "train", "validate"]


@task(**stage_options("collect", timeout_h=12))
def collect(
    app: App,
    token: str,  # noqa: ARG001
    number: int,
    policy: TrainingReport | None,
    earlier_runs: int,
) -> CollectionReceipt:
    """Grow hosts under the newest policy, or under the profile's controller while there is none."""
    return app.collect_round(number, policy, earlier_runs)


@task(**stage_options("ingest", timeout_h=6))
def ingest(app: App, token: str, number: int, collected: CollectionReceipt | None) -> IngestReceipt:  # noqa: ARG001
    """Land what waits on the bus; other own episodes are reason to look again."""
    return app.ingest()


@task(**stage_options("curate", timeout_h=6))
def curate(app: App, token: str, number: int, landed: IngestReceipt) -> SnapshotManifest:  # noqa: ARG001
    """Seal a snapshot of all landed experience."""
    return app.curate()


@task(**stage_options("train", timeout_h=24))
def train(
    app: App,
    token: str,  # noqa: ARG001
    number: int,  # noqa: ARG001
    snapshot: SnapshotManifest,
    previous: TrainingReport | None,
    champion: str | None,
) -> TrainingReport:
    """Learn: from the policy of the round before, from the champion, or from nothing."""
    return app.train_round(snapshot, previous, champion)


@task(**stage_options("validate", timeout_h=12))
def validate(
    app: App,
    token: str,  # noqa: ARG001
    number: int,  # noqa: ARG001
    training: TrainingReport,
    champion: str | None,
) -> ValidationReport:
    """Closed-loop trials on held-out hosts."""
    return app.validate(training, champion)


@task(**stage_options("decide", timeout_h=1))
def decide(app: App, token: str, number: int, report: ValidationReport) -> GateDecision:  # noqa: ARG001
    """The gate."""
    return app.decide(report)


@task(**stage_options("record", timeout_h=1))
def record(
    app: App,
    token: str,  # noqa: ARG001
    number: int,  # noqa: ARG001
    report: ValidationReport,
    decision: GateDecision,
) -> PolicyVersion:
    """The candidate and all its evidence, into the registry."""
    return app.record(report, decision)


@task(**stage_options("promote", timeout_h=1))
def promote(app: App, token: str, number: int, candidate: PolicyVersion, decision: GateDecision) -> PolicyVersion:  # noqa: ARG001
    """The candidate becomes the champion."""
    return app.promote(candidate, decision)


@task(**stage_options("publish", timeout_h=1))
def publish(app: App, token: str, number: int, version: PolicyVersion) -> PublicationReceipt:  # noqa: ARG001
    """Production is told."""
    return app.publish(version)
