"""One retraining run: its lock, its resumption after a kill, its rounds and its receipt; no Prefect."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from simic.app.container import Container
from simic.app.evidence.plan_books import check_baselines
from simic.app.training import DISTIL, collected_sets, require_finished, trial_inputs
from simic.contracts.base import Contract, Count, Digest
from simic.contracts.errors import IntegrityError, ResourceLimitError, TransientError
from simic.contracts.results.gate import GateDecision, ValidationReport
from simic.contracts.results.receipts import (
    CollectionReceipt,
    IngestReceipt,
    PolicyVersion,
    PublicationReceipt,
    Receipt,
    SnapshotManifest,
    TrainingReport,
)
from simic.contracts.results.run import RunReceipt
from simic.contracts.results.trials import SeedChoice, TrialReport
from simic.contracts.settings.continual import require_policy
from simic.contracts.settings.run import RunConfig
from simic.learning.objectives import OBJECTIVES
from simic.ledgers.runs import RunEntry, RunEvent, RunIdentity
from simic.runtime.files import disk_full_as_transient
from simic.runtime.home import resolve_home
from simic.runtime.locks import exclusive
from simic.runtime.progress import Progress
from simic.runtime.settings import load_profile
from simic.trust.canonical import digest_of
from simic.validation.criterion import TRIALS
from simic.validation.further import further_sets
from simic.validation.promotion_gate import applied_criteria, rejection_message
from simic.validation.table import render_gain, render_spread

__all__ = ["Run", "RunKey", "Stages", "describe", "open_container", "open_run", "open_run_in"]

_LOG = logging.getLogger(__name__)

R = TypeVar("R", bound=Receipt)


class RunKey(Contract):
    """Parameters of a run that all its stages share, as plain data: a stage builds its container from them."""

    profile: str
    seed: Count
    config: RunConfig
    """Settings of the profile with the overrides, resolved when the run began."""
    token: str
    """Id of the run; a killed run continues under the same token."""
    earlier_runs: Count
    """Runs that this home had begun before."""
    champion: Digest | None
    """Digest of the champion when the run began."""


def open_container(run: RunKey, progress: Progress) -> Container:
    """Return the live parts for one stage of a run, in the home of this process."""
    return Container(resolve_home(), run.config, run.seed, progress=progress, run=run.token)


class Stages(Protocol):
    """The stages between the start of a run and its judgement; each returns the receipt of its work."""

    def collect(self, run: RunKey, number: int, policy: TrainingReport | None, set_name: str, /) -> CollectionReceipt:
        """Grow the hosts of a set for a round; round 0 has no policy yet."""

    def ingest(self, run: RunKey, number: int, collected: list[CollectionReceipt], /) -> IngestReceipt:
        """Land what waits on the bus."""

    def curate(self, run: RunKey, number: int, landed: IngestReceipt, /) -> SnapshotManifest:
        """Make a snapshot of all landed experience."""

    def train(
        self, run: RunKey, number: int, snapshot: SnapshotManifest, previous: TrainingReport | None, /
    ) -> TrainingReport:
        """Train on a snapshot."""

    def train_seed(
        self, run: RunKey, number: int, snapshot: SnapshotManifest, previous: TrainingReport | None, seed: str, /
    ) -> TrainingReport:
        """Train once more, with another training seed."""

    def choose(self, run: RunKey, number: int, trained: list[TrainingReport], /) -> SeedChoice:
        """Choose among the policies of several training seeds."""


class Run:
    """An open run; it collects the receipts of its stages."""

    def __init__(self, container: Container, entry: RunEntry) -> None:
        """Begin or resume a run; ConfigError if its settings need a champion or a Karn and the home has none."""
        config = container.config
        container.karns.configured()  # a missing Karn is an error before anything grows
        if entry.start_digest is None:
            require_policy(config.train.lora)
        self.key = RunKey(
            profile=entry.identity.profile,
            seed=container.seed,
            config=config,
            token=entry.token,
            earlier_runs=entry.number,
            champion=entry.start_digest,
        )
        is_grown = config.gate.evidence == TRIALS
        self.rounds = range(1, config.collect.rounds + 1) if is_grown else range(0)
        """Rounds of own episodes; none where reports judge, because Simic cannot grow these hosts."""
        first = config.collect.branch_hosts if config.train.start == DISTIL else config.collect.episodes
        first = first if is_grown else 0
        self.needs_own_experience = entry.start_digest is None and first > 0
        """Whether the run has to collect before it can train, because there is no champion yet."""
        self.further_sets = further_sets(config)
        """Sets besides the run's own on which the candidate is tried."""
        self._container, self._entry = container, entry
        self._started_at = container.clock()
        self._receipts: list[Receipt] = []

    def add(self, receipt: R) -> R:
        """Add the receipt of a stage to that of the run, and return it."""
        self._receipts.append(receipt)
        return receipt

    def learn(self, stages: Stages) -> TrainingReport:
        """Collect if needed and train, then collect and train in rounds; return the last policy, which is judged."""
        collected = self._collect(stages, 0, None) if self.needs_own_experience else []
        landed = self.add(stages.ingest(self.key, 0, collected))
        snapshot = self.add(stages.curate(self.key, 0, landed))
        policy = self._train(stages, 0, snapshot, None)
        for number in self.rounds:
            collected = self._collect(stages, number, policy)
            landed = self.add(stages.ingest(self.key, number, collected))
            snapshot = self.add(stages.curate(self.key, number, landed))
            policy = self._train(stages, number, snapshot, policy)
        return policy

    def _train(
        self, stages: Stages, number: int, snapshot: SnapshotManifest, previous: TrainingReport | None
    ) -> TrainingReport:
        """Train once, in the last round with every training seed; return the policy that goes on.

        Raises:
            HopelessError: if no training finished.
        """
        key, is_last = self.key, number == len(self.rounds)
        trained = [self.add(stages.train(key, number, snapshot, previous))]
        seeds = range(key.seed + 1, key.seed + key.config.train.seeds) if is_last else ()
        if not seeds:
            require_finished(*trained)
            return trained[0]
        trained += [self.add(stages.train_seed(key, number, snapshot, previous, str(seed))) for seed in seeds]
        choice = self.add(stages.choose(key, number, trained))
        chosen = next((report for report in trained if report.digest == choice.policy_digest), None)
        if chosen is None:
            raise IntegrityError(
                f"the choice among training seeds of run {key.token} names policy {choice.policy_digest[:12]}, which "
                f"is none of {', '.join(report.digest[:12] for report in trained)}; start the run again"
            )
        return chosen

    def _collect(self, stages: Stages, number: int, policy: TrainingReport | None) -> list[CollectionReceipt]:
        names = collected_sets(self.key.config, is_first=policy is None)
        return [self.add(stages.collect(self.key, number, policy, name)) for name in names]

    def finish(
        self,
        report: ValidationReport,
        decision: GateDecision,
        version: PolicyVersion | None = None,
        publication: PublicationReceipt | None = None,
    ) -> RunReceipt:
        """Save and return the receipt of the run; without a version its candidate was rejected."""
        provenance = self._container.provenance
        receipt = RunReceipt(
            code_version=provenance.code_version,
            config_digest=provenance.config_digest,
            seed=provenance.seed,
            started_at=self._started_at,
            finished_at=self._container.clock(),
            token=self.key.token,
            profile=self.key.profile,
            is_resumed=self._entry.event is RunEvent.RESUMED,
            start_digest=self.key.champion,
            collections=self._of(CollectionReceipt),
            ingests=self._of(IngestReceipt),
            snapshots=self._of(SnapshotManifest),
            trainings=self._of(TrainingReport),
            choice=next(iter(self._of(SeedChoice)), None),
            validation=report,
            decision=decision,
            version=version,
            publication=publication,
        )
        return self._container.save_receipt(receipt)

    def judged_with(self) -> str:
        """Return the digest of present hosts, plug-ins and plan books; with others, trials are of another judgement.

        Raises:
            ConfigError: as ``trial_inputs``.
            ContractError: as ``trial_inputs``.
        """
        return digest_of(trial_inputs(self._container))

    def champion(self) -> PolicyVersion | None:
        """Return the present champion."""
        return self._container.policies.champion()

    def _of(self, kind: type[R]) -> list[R]:
        return [receipt for receipt in self._receipts if isinstance(receipt, kind)]


@contextmanager
def open_run(profile: str, seed: int, overrides: Mapping[str, Any]) -> Iterator[Run]:
    """Acquire the run lock and open a journal entry, resuming the previous run if it was killed.

    Success and terminal errors close the entry; transient errors (a full disk among them), limits of resources, kills
    and cancellation leave it open, so that the same command resumes the run, also with other limits.

    Raises:
        ConfigError: if the settings are invalid or a required plan book is missing or out of date.
        TransientError: if another run is active.
    """
    with open_run_in(Container(resolve_home(), load_profile(profile, overrides), seed), profile) as run:
        yield run


@contextmanager
def open_run_in(container: Container, profile: str, *, has_gate: bool = True) -> Iterator[Run]:
    """Open a run in the home of a container, as ``open_run`` does; ``has_gate`` as for ``check_baselines``."""
    check_baselines(container, has_gate=has_gate)
    # An unknown objective or criterion is refused before hosts are grown.
    OBJECTIVES.load(container.config.train.objective)
    if has_gate:
        applied_criteria(container.config.gate.without)
    identity = RunIdentity(
        profile=profile,
        seed=container.seed,
        config_digest=container.provenance.config_digest,
        code_version=container.provenance.code_version,
    )
    with exclusive(container.home.locks / "run", "a run of the flow"):
        journal = container.run_journal()
        entry = journal.open(identity, container.policies.champion_digest())
        _LOG.info("%s run %s, profile %s, seed %d", entry.event.value.lower(), entry.token, profile, container.seed)
        try:
            with disk_full_as_transient():
                yield Run(container, entry)
        except (TransientError, ResourceLimitError):
            raise
        except Exception as error:
            journal.close(entry, f"{type(error).__name__}: {error}")
            raise
        journal.close(entry, "finished")


def describe(receipt: Receipt) -> str:
    """Return one line for the log of a run: counts of a stage, and the reasons for what it left out."""
    match receipt:
        case CollectionReceipt():
            result = "" if receipt.mean_return is None else f", mean return {receipt.mean_return:.2f} points"
            branches = f" and {receipt.branches:,} branches of them" if receipt.branches else ""
            what = f"{receipt.set}: {receipt.episodes:,} episodes under {receipt.controller}{branches}"
            stopped = f", {sum(receipt.stopped.values()):,} cut off early{_reasons(receipt.stopped)}"
            return f"{what}, {receipt.reports:,} reports{stopped if receipt.stopped else ''}{result}"
        case IngestReceipt():
            phrases = [f"{receipt.landed:,} landed", f"{receipt.quarantined:,} refused{_reasons(receipt.reasons)}"]
            others = {"duplicate": receipt.duplicate, "dead-lettered": receipt.dead_lettered, "lost": receipt.lost}
            return ", ".join([*phrases, *(f"{count:,} {name}" for name, count in others.items() if count)])
        case SnapshotManifest():
            episodes = ", ".join(f"{count:,} {split}" for split, count in receipt.episodes.items())
            left_out = f"{receipt.rows_in - receipt.rows_out:,} left out{_reasons(receipt.rejected)}"
            return (
                f"snapshot {receipt.digest[:12]}: {receipt.rows_out:,} rows, {left_out}; episodes: {episodes or 'none'}"
            )
        case TrainingReport():
            start = "random weights" if receipt.start_digest is None else f"policy {receipt.start_digest[:12]}"
            sets = f" of {', '.join(receipt.sets)}" if receipt.sets else ""
            counts = f"{receipt.updates:,} updates on {receipt.episodes:,} episodes{sets}"
            stop = receipt.stopped
            end = "" if stop is None else f"; ended early as hopeless ({stop.cause.value} in phase {stop.phase})"
            return f"policy {receipt.digest[:12]} from {start}: {counts}{end}"
        case SeedChoice():
            chosen = f"policy {receipt.policy_digest[:12]} of seed {receipt.training_seed}"
            return f"{render_spread(receipt)}; {chosen} is judged"
        case ValidationReport():
            where = "held-out hosts" if receipt.evidence == "trials" else "held-out hosts of the log"
            return f"policy {receipt.policy_digest[:12]} on {receipt.hosts:,} {where}: {_differences(receipt)}"
        case TrialReport():
            return render_gain(receipt)
        case GateDecision():
            passed = f"{len(receipt.criteria)} criteria passed"
            return f"accepted: {passed}" if receipt.accepted else f"rejected: {rejection_message(receipt)}"
        case PolicyVersion():
            aliases = ", ".join(receipt.aliases) or "no alias"
            version = f"{receipt.name}/{receipt.number} ({receipt.semantic_version}, {aliases})"
            return f"{version}, policy {receipt.digest[:12]}, MLflow run {receipt.mlflow_run_id}"
        case PublicationReceipt():
            version = f"{receipt.update.policy_name} {receipt.update.version}"
            return f"update to {version} {'put on the bus' if receipt.delivered else 'was already published'}"
        case _:
            return f"finished {receipt.finished_at:%Y-%m-%d %H:%M} UTC"


def _reasons(counts: Mapping[str, int]) -> str:
    reasons = sorted(((count, name) for name, count in counts.items() if count), key=lambda pair: (-pair[0], pair[1]))
    return f" ({', '.join(f'{count:,} {name}' for count, name in reasons)})" if reasons else ""


def _differences(report: ValidationReport) -> str:
    differences: Sequence[str] = [
        f"{estimate.mean:+.2f} over {name} (at least {estimate.lower:+.2f})"
        for name, estimate in report.differences.items()
    ]
    return ", ".join(differences) or "no comparison"
