"""A run of the flow from its lock to its last line: one at a time, resumed after a kill, closed by its verdict."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from prefect.client.schemas.objects import State
from prefect.states import Completed
from prefect.tasks import Task

from simic.app import App
from simic.app.journal import RunEntry, RunEvent, RunIdentity
from simic.app.verdict import rejection
from simic.contracts.errors import TransientError
from simic.contracts.receipts import (
    CollectionReceipt,
    GateDecision,
    IngestReceipt,
    PolicyVersion,
    PublicationReceipt,
    Receipt,
    RunReceipt,
    SnapshotManifest,
    TrainingReport,
    ValidationReport,
)
from simic.runtime.locks import exclusive
from simic.runtime.progress import NoProgress, Progress, Titled
from simic.runtime.settings import load_profile, resolve_home
from simic.runtime.space import full_disk_is_transient
from tasks import artifacts, stages

__all__ = ["Session", "collect_once", "open_session", "shown_on"]

_LOG = logging.getLogger("simic.run")
_PROGRESS: ContextVar[Progress] = ContextVar("progress", default=NoProgress())  # noqa: B039 - it has no state

R = TypeVar("R", bound=Receipt)


@contextmanager
def shown_on(progress: Progress) -> Iterator[None]:
    """Runs begun within show how far they are; a flow's own parameters must be plain data."""
    before = _PROGRESS.set(progress)
    try:
        yield
    finally:
        _PROGRESS.reset(before)


class Session:
    """The stages of one run, each called by one line of the flow; keeps every receipt."""

    def __init__(self, app: App, entry: RunEntry, progress: Titled) -> None:
        self.app = app
        self.token = entry.token
        self.champion = entry.start_digest
        """Digest of the champion at the start, if any."""
        self.rounds = range(1, app.config.collect.rounds + 1)
        self.is_cold = entry.start_digest is None and app.config.collect.episodes > 0
        """Whether the first experience has to be our own."""
        self._entry, self._progress = entry, progress
        self._started_at = app.clock()
        self._receipts: list[Receipt] = []

    def collect(self, number: int, policy: TrainingReport | None) -> CollectionReceipt:
        """Experience of our own."""
        return self._in_round(stages.collect, number, policy, self._entry.number)

    def ingest(self, number: int, collected: CollectionReceipt | None) -> IngestReceipt:
        """Bus to Parquet."""
        return self._in_round(stages.ingest, number, collected)

    def curate(self, number: int, landed: IngestReceipt) -> SnapshotManifest:
        """Parquet to snapshot."""
        return self._in_round(stages.curate, number, landed)

    def train(self, number: int, snapshot: SnapshotManifest, previous: TrainingReport | None) -> TrainingReport:
        """Snapshot to policy."""
        return self._in_round(stages.train, number, snapshot, previous, self.champion)

    def validate(self, training: TrainingReport) -> ValidationReport:
        """Policy to evidence."""
        report = self._call(stages.validate, 0, training, self.champion)
        artifacts.show_validation(report)
        return report

    def decide(self, report: ValidationReport) -> GateDecision:
        """Evidence to decision."""
        decision = self._call(stages.decide, 0, report)
        artifacts.show_decision(decision)
        return decision

    def record(self, report: ValidationReport, decision: GateDecision) -> PolicyVersion:
        """Policy and evidence to registry."""
        return self._call(stages.record, 0, report, decision)

    def promote(self, candidate: PolicyVersion, decision: GateDecision) -> PolicyVersion:
        """Candidate to champion."""
        version = self._call(stages.promote, 0, candidate, decision)
        artifacts.show_version(version)
        return version

    def publish(self, version: PolicyVersion) -> PublicationReceipt:
        """Champion to production."""
        return self._call(stages.publish, 0, version)

    def finish(
        self,
        report: ValidationReport,
        decision: GateDecision,
        version: PolicyVersion | None = None,
        publication: PublicationReceipt | None = None,
    ) -> State[RunReceipt]:
        """The receipt of the whole, as a completed state; a rejection is a result, not a failure."""
        receipt = self._receipt(report, decision, version, publication)
        self.app.keep(receipt)
        if version is not None:
            return Completed(data=receipt, message=f"promoted {version.semantic_version} ({version.digest[:12]})")
        return Completed(name="Rejected", data=receipt, message=rejection(decision))

    def _in_round(self, stage: Task[..., R], number: int, *inputs: object) -> R:
        """The same, announced by its round; what comes before the first round has no number."""
        if number not in self.rounds:
            return self._call(stage, number, *inputs)
        with self._progress.titled(f"round {number} of {len(self.rounds)}"):
            return self._call(stage, number, *inputs)

    def _call(self, stage: Task[..., R], number: int, *inputs: object) -> R:
        """Run a stage, or take its stored receipt if what it speaks of is still whole."""
        receipt = stage(self.app, self.token, number, *inputs)
        if not self.app.is_intact(receipt):
            _LOG.warning("%s: what the stored receipt speaks of is damaged or gone: doing it again", stage.name)
            self.app.set_aside(receipt)
            receipt = stage.with_options(refresh_cache=True)(self.app, self.token, number, *inputs)
        self._receipts.append(receipt)
        return receipt

    def _of(self, kind: type[R]) -> list[R]:
        return [receipt for receipt in self._receipts if isinstance(receipt, kind)]

    def _receipt(
        self,
        report: ValidationReport,
        decision: GateDecision,
        version: PolicyVersion | None,
        publication: PublicationReceipt | None,
    ) -> RunReceipt:
        provenance = self.app.provenance
        return RunReceipt(
            code_version=provenance.code_version,
            config_digest=provenance.config_digest,
            seed=provenance.seed,
            started_at=self._started_at,
            finished_at=self.app.clock(),
            token=self.token,
            profile=self._entry.identity.profile,
            is_resumed=self._entry.event is RunEvent.RESUMED,
            start_digest=self.champion,
            collections=self._of(CollectionReceipt),
            ingests=self._of(IngestReceipt),
            snapshots=self._of(SnapshotManifest),
            trainings=self._of(TrainingReport),
            validation=report,
            decision=decision,
            version=version,
            publication=publication,
        )


@contextmanager
def open_session(profile: str, seed: int, overrides: Mapping[str, Any]) -> Iterator[Session]:
    """Hold the lock of the run, find out whether it continues one that was killed, and close it by its verdict.

    A run ends by itself when it finishes or fails, be it by a bug or out of time: going on with it would only
    repeat the end, on receipts that grow stale. What is transient (a full disk too), a kill or a cancellation leaves
    it open, and the same command goes on with it.
    """
    progress = Titled(_PROGRESS.get())
    app = App(resolve_home(), load_profile(profile, overrides), seed, progress=progress)
    app.check_baselines()
    with exclusive(app.home.locks / "run", "a run of the flow"):
        journal = app.run_journal()
        entry = journal.open(_identity(app, profile), app.champion_digest())
        _LOG.info("%s run %s, profile %s, seed %d", entry.event.value.lower(), entry.token, profile, seed)
        try:
            with full_disk_is_transient():
                yield Session(app, entry, progress)
        except TransientError:
            raise
        except Exception as error:
            journal.close(entry, f"{type(error).__name__}: {error}")
            raise
        journal.close(entry, "finished")


def _identity(app: App, profile: str) -> RunIdentity:
    return RunIdentity(
        profile=profile,
        seed=app.provenance.seed,
        config_digest=app.provenance.config_digest,
        code_version=app.provenance.code_version,
    )


def collect_once(controller: str, episodes: int, profile: str, seed: int) -> CollectionReceipt:
    """Episodes of training hosts, outside any run."""
    config = load_profile(profile, {"collect.episodes": episodes})
    return App(resolve_home(), config, seed, progress=_PROGRESS.get()).collect(controller)
