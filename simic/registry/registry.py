"""The registry: recorded candidates, one staged, one champion, promotion and rollback."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from simic.contracts.actor import Actor
from simic.contracts.errors import ConfigError, IntegrityError, TransientError
from simic.contracts.names import CANDIDATE, CHAMPION, KARN, MODEL_NAME, MODELS, STAGED, maker_of
from simic.contracts.results.gate import GateDecision, ValidationReport
from simic.contracts.results.receipts import PolicyVersion
from simic.ledgers import CANDIDATES_LEDGER, PROMOTIONS_LEDGER
from simic.ledgers.policies import check_candidates, check_entry, gate_decisions, is_candidate_trusted, read_history
from simic.ledgers.promotions import PromotionEntry
from simic.registry.differences import Difference, journal_cut, registered_as
from simic.registry.doctor import RegistryDoctor
from simic.registry.journal_entries import (
    check_consulting,
    check_gate,
    check_unused,
    promotion_entry,
    rollback_entry,
    staging_entry,
)
from simic.registry.labels import Labels
from simic.registry.ledger_records import LedgerRecords
from simic.registry.mlflow_run import CandidateRecord, restore_run_hint
from simic.registry.mlflow_store import display_only, initialise, open_client, store_errors
from simic.registry.models import Models, Shown
from simic.registry.promotion import OnStep, Promotions, SmokeTest
from simic.registry.reader import RegistryReader
from simic.registry.recording import Recorder
from simic.runtime.clock import Clock
from simic.runtime.home import Home
from simic.runtime.locks import exclusive, shared
from simic.trust.keys import Keyring, Signer
from simic.trust.seal import verify
from simic.trust.sealed_receipts import check_decision

__all__ = ["Registry"]

LOCK_WAIT_S = 60.0
FLOW_RUN_TAG = "flow_run"
"""Tag of an MLflow run that names the Prefect flow run that recorded it."""
_MOST_CHARACTERS = 4096
"""Largest length of a text in a line of the journal."""


def _ignore(_step: str) -> None:
    """Do nothing after a step."""


def _pass(_policy: Path, _digest: str) -> None:
    """Try nothing."""


class Registry:
    """The judged versions of one model. Opening the registry finishes or undoes what a killed process left half done.

    The journal of promotions decides who is champion. MLflow is compared with it before anything about the champion is
    returned; a difference raises IntegrityError.
    """

    def __init__(
        self,
        home: Home,
        keyring: Keyring,
        *,
        model: str = MODEL_NAME,
        signer: Callable[[], Signer],
        clock: Clock,
        actor: Actor | None = None,
        on_step: OnStep = _ignore,
        smoke_test: SmokeTest | None = None,
    ) -> None:
        """Open the registry of a home.

        Args:
            home: Holds the ledgers and MLflow's database, which is created if it was never there.
            keyring: Trusted keys.
            model: Name of the registered model.
            signer: Called when a decision or a move is signed.
            clock: Gives the time of moves.
            actor: Who stages, promotes and rolls back; the journal keeps it.
            on_step: Called after every durable step, with its name.
            smoke_test: Tries a new champion before its promotion or rollback is closed; if it raises, the champion
                before is restored.
        """
        self._home, self._keyring, self._clock, self._actor = home, keyring, clock, actor
        _check_database(home)
        with store_errors("opening the registry"):
            experiment = initialise(home, model)
            client = open_client(home.tracking_uri)
        self._models = Models(client, home.tracking_uri, model)
        labels = Labels(client, experiment, self._models)
        self._reader = RegistryReader(home, keyring, self._models)
        self._promotions = Promotions(home, self._models, labels, keyring, signer, on_step, smoke_test or _pass)
        self._recorder = Recorder(client, experiment, self._reader, labels, signer, on_step)
        self._doctor = RegistryDoctor(self._reader, labels)
        self._settle()

    def record(self, candidate: CandidateRecord) -> PolicyVersion:
        """Record a judged candidate, accepted or not, and point the alias ``candidate`` at it.

        Recording a policy again adds no version; a new judgement replaces the tags of the old one. A version that was
        champion keeps the evidence of its promotion, because production and a rollback depend on it. The later
        judgement is in its run and in the ledger of gate decisions.

        Raises:
            IntegrityError: MLflow and the ledgers differ about a listed version, or a receipt is about another policy.
        """
        digest, model = candidate.training.digest, self._models.name
        for name, receipt in (("validation report", candidate.validation), ("gate decision", candidate.gate)):
            if (receipt.model, receipt.policy_digest) != (model, digest):
                raise IntegrityError(
                    f"the {name} is about another policy: expected {digest} of {model}, found {receipt.policy_digest} "
                    f"of {receipt.model}; give the receipts of one policy"
                )
        check_decision(candidate.gate, candidate.snapshot.digest)
        verify(Path(candidate.training.path), self._keyring, digest)
        with self._writing("recording a candidate"):
            return self._recorder.record(candidate)

    def link_flow_run(self, version: PolicyVersion, flow_run: str) -> None:
        """Tag the MLflow run of a version with the page, or else the id, of the Prefect flow run that recorded it.

        A run that MLflow refuses to change is logged.
        """
        run_id = version.mlflow_run_id
        with self._writing("linking a flow run"), display_only(f"the tag {FLOW_RUN_TAG} was", restore_run_hint(run_id)):
            open_client(self._home.tracking_uri).set_tag(run_id, FLOW_RUN_TAG, flow_run)

    def stage(self, version: PolicyVersion, report: ValidationReport, gate: GateDecision) -> PolicyVersion:
        """Let a recorded candidate wait to be promoted; the gate must have accepted it against the present champion.

        It replaces what was staged before. Staging it again by the same decision, or staging the champion, changes
        nothing. The parameters and errors are those of ``promote``.
        """
        with self._writing("staging a policy"):
            records, shown = self._reader.agreed(digest=version.digest)
            champion = records.history.champion
            if champion is not None and champion.digest == version.digest:
                return self._reader.version(champion.target, records, shown)
            staged = self._stage(version, report, gate, records, shown)
            return self._reader.version(staged.target, *self._reader.agreed(staged.target))

    def promote(self, version: PolicyVersion, report: ValidationReport, gate: GateDecision) -> PolicyVersion:
        """Make a recorded candidate champion, after it is staged unless it was.

        The gate must have accepted it against the present champion.

        Args:
            version: The candidate.
            report: The evidence that the gate judged.
            gate: The decision.

        Raises:
            IntegrityError: Registry and ledgers differ about the candidate or the champion.
            GateRejectedError: The decision does not allow the promotion.
        """
        with self._writing("promoting a policy"):
            records, shown = self._reader.agreed(digest=version.digest)
            champion = records.history.champion
            if champion is not None and champion.digest == version.digest:
                return self._reader.version(champion.target, records, shown)
            staged = self._stage(version, report, gate, records, shown)
            entry = promotion_entry(staged, self._reader.records().history, self._clock())
            self._promotions.move(self._signed_for(entry))
            return self._reader.version(entry.target, *self._reader.agreed())

    def _stage(
        self,
        version: PolicyVersion,
        report: ValidationReport,
        gate: GateDecision,
        records: LedgerRecords,
        shown: Shown,
    ) -> PromotionEntry:
        """Return the closed staging of a candidate by this decision; the caller holds the lock."""
        target = registered_as(version.digest, records, shown)
        if target is None:
            raise ConfigError(f"policy {version.digest} is not registered; `simic promote` registers it")
        check_gate(gate, version.digest, records.history.champion)
        check_unused(gate, records.history, gate_decisions(self._home))
        if self._models.name == KARN:
            check_consulting(gate, read_history(self._home, self._keyring).champion)
        self._check_candidate(target.number)
        recorded = self._reader.version(target.number, records, shown)
        lineage = self._reader.stored_lineage(recorded.number, recorded.digest)
        entry = staging_entry(recorded, report, gate, lineage, records.history, self._clock())
        check_entry(self._home, entry)
        staged = records.history.staged
        if staged is not None and (staged.target, staged.version.gate_digest) == (entry.target, gate.digest):
            return staged
        return self._promotions.stage(self._signed_for(entry))

    def _signed_for(self, entry: PromotionEntry) -> PromotionEntry:
        return entry.model_copy(update={"actor": self._actor})

    def _check_candidate(self, number: int) -> None:
        """Raise IntegrityError unless a trusted key sealed what the journal takes from the ledger of candidates."""
        check_candidates(self._home, self._keyring)
        if not is_candidate_trusted(self._home, self._keyring, self._models.name, number):
            raise IntegrityError(
                f"{self._home.ledger / CANDIDATES_LEDGER}: the key that sealed the line about version {number} was "
                f"revoked, so it is not promoted; validate that policy again and record it again (`simic promote`)"
            )

    def rollback(self, reason: str, expected: PolicyVersion | None = None) -> PolicyVersion:
        """Restore the champion before the present one; ``reason`` is recorded on the version that is replaced.

        Both versions come from the journal, whatever the alias or the state of the present champion.

        Raises:
            ConfigError: There is no champion to go back to, or the reason is too long.
            TransientError: The champion is not the ``expected`` one.
            IntegrityError: The former champion's files are damaged, or its accepting decision is not on record.
        """
        if len(reason) > _MOST_CHARACTERS:
            raise ConfigError(f"a reason has at most {_MOST_CHARACTERS} characters, found {len(reason)}")
        with self._writing("rolling back"):
            history = read_history(self._home, self._keyring, self._models.name)
            champion, former = history.champion, history.before_champion()
            _check_expected(champion, expected)
            if champion is None:
                raise ConfigError(
                    f"cannot roll back: this home has no champion; {maker_of(self._models.name)} makes one"
                )
            if former is None:
                present = history.promotion(champion).target
                raise ConfigError(
                    f"cannot roll back: this home had no champion when version {present} was promoted, which is the "
                    f"present one; {maker_of(self._models.name)} makes another champion"
                )
            check_entry(self._home, former)
            entry = rollback_entry(champion, former, history, reason, self._clock())
            self._promotions.move(self._signed_for(entry))
            return self._reader.version(entry.target, self._reader.records(), self._models.look_at(entry.target))

    def champion(self) -> PolicyVersion | None:
        """Return the present champion, if there is one; its files are not read.

        Raises:
            IntegrityError: Journal, ledgers and MLflow differ about the champion.
        """
        with store_errors("reading the registry"):
            records, shown = self._reader.agreed()
            champion = records.history.champion
            return None if champion is None else self._reader.version(champion.target, records, shown)

    @contextmanager
    def certified(
        self, update_digests: Collection[str] = (), expected: PolicyVersion | None = None
    ) -> Iterator[PromotionEntry]:
        """Yield the journal entry of the present champion, every byte verified; the champion cannot change meanwhile.

        Args:
            update_digests: Policy digests named by signed updates; the journal must contain the promotion of each.
            expected: The champion on which the caller decided.

        Raises:
            ConfigError: There is no champion.
            TransientError: The champion is not the ``expected`` one.
            IntegrityError: As ``champion`` and ``load`` raise it, or the journal lost lines.
        """
        with self._writing("reading the champion"):
            if cut := journal_cut(self._reader.records(), Shown(self._models.name, {}, {}), update_digests):
                raise IntegrityError(
                    cut
                )  # before MLflow is compared: a repair would copy the shortened journal to MLflow
            records, shown = self._reader.agreed()
            if cut := journal_cut(records, shown, update_digests):
                raise IntegrityError(cut)
            champion = records.history.champion
            _check_expected(champion, expected)
            if champion is None:
                raise ConfigError(f"there is no champion to publish: {maker_of(self._models.name)} makes one")
            self._reader.fetch(champion.version, is_champion=True, into=None)
            yield champion

    def find(self, reference: str) -> PolicyVersion:
        """Return the version behind a reference such as ``models:/tamiyo@champion`` or ``models:/tamiyo/3``.

        Raises:
            ConfigError: There is no such version.
            IntegrityError: Ledgers and MLflow differ about it while no process writes.
            TransientError: They differ, and a process goes on writing.
        """
        what = f"resolving {reference}"
        with store_errors(what):
            name = self._models.parse(reference)
            try:
                return self._resolved(reference, name)
            except IntegrityError:  # another process may have written between the reads, or still be writing
                with self._undisturbed(what):
                    return self._resolved(reference, name)

    def _resolved(self, reference: str, name: str | int) -> PolicyVersion:
        """Return the version of an alias or number; ledgers and MLflow are not read at one moment."""
        if name == CHAMPION:
            records, shown = self._reader.agreed()
            champion = records.history.champion
            number = None if champion is None else champion.target
        elif name == STAGED:
            records, shown = self._reader.agreed()
            staged = records.history.staged
            number = None if staged is None else staged.target
            shown = shown if number is None else self._models.look_at(number)
        else:
            records = self._reader.records()
            number = self._models.alias(name) if isinstance(name, str) else name
            shown = self._models.look_at() if number is None else self._models.look_at(number)
        if number is None or (isinstance(name, int) and number not in shown.versions):
            raise ConfigError(_unknown(reference, name, self._models.look()))
        return self._reader.version(number, records, shown)

    def load(self, reference: str, into: Path) -> Path:
        """Fetch the sealed policy behind a reference to ``into``; digest and signature are always verified."""
        version = self.find(reference)
        with store_errors(f"loading {reference}"):
            self._reader.fetch(version, is_champion=CHAMPION in version.aliases, into=into)
        return into

    def differences(self, update_digests: Collection[str] = ()) -> list[Difference]:
        """Return every alias, tag, run name and text in MLflow that differs from the ledgers; changes nothing.

        ``update_digests`` are the policy digests that signed updates name.
        """
        with store_errors("examining the registry"):
            return self._doctor.differences(update_digests)

    def damaged_versions(self) -> list[tuple[PolicyVersion, str]]:
        """Return every version whose stored files differ from the seal, with the problem; reads every byte."""
        with store_errors("examining the registry"):
            return self._doctor.damaged_versions()

    def count(self) -> int:
        """Return the number of versions."""
        with store_errors("examining the registry"):
            return len(self._models.look().versions)

    def repair(self, update_digests: Collection[str] = ()) -> None:
        """Set aliases, tags, run names and texts in MLflow from the ledgers.

        ``update_digests`` are the policy digests that signed updates name.

        Raises:
            IntegrityError: The champion's files are damaged, or the journal lost lines. Nothing was changed.
        """
        with self._writing("repairing the registry"):
            self._doctor.repair(update_digests)

    @contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        """Hold the lock of the registry: MLflow's aliases have no compare-and-swap."""
        with exclusive(self._home.locks / "registry", what, LOCK_WAIT_S), store_errors(what):
            self._promotions.recover()
            yield

    @contextmanager
    def _undisturbed(self, what: str) -> Iterator[None]:
        """Keep others from writing, and change nothing.

        Without a readable file of the lock, in a home that this user cannot write, there is nothing to hold, and
        others may write meanwhile.
        """
        lock = self._home.locks / "registry"
        if os.access(lock, os.R_OK) or os.access(self._home.locks, os.W_OK | os.X_OK):
            with shared(lock, what, LOCK_WAIT_S):
                yield
        else:
            yield

    def _settle(self) -> None:
        if self._promotions.is_settled():
            return
        with ExitStack() as stack:
            try:
                stack.enter_context(exclusive(self._home.locks / "registry", "settling the registry"))
            except TransientError:
                return  # the holder of the lock is finishing that entry
            with store_errors("settling the registry"):
                self._promotions.recover()


def _check_database(home: Home) -> None:
    """Raise IntegrityError if a ledger lists policies and the database is missing: a new one would lack them."""
    database = home.mlflow_database
    listing = [home.ledger / name for name in (CANDIDATES_LEDGER, PROMOTIONS_LEDGER) if (home.ledger / name).exists()]
    if listing and not database.exists():
        raise IntegrityError(
            f"{listing[0]} lists registered policies, but {database} is missing; restore it from a backup"
        )


def _check_expected(champion: PromotionEntry | None, expected: PolicyVersion | None) -> None:
    """Raise TransientError if the champion changed after a caller without the lock decided about it."""
    found = None if champion is None else (champion.target, champion.digest)
    if expected is not None and found != (expected.number, expected.digest):
        present = "none" if champion is None else f"version {champion.target} with digest {champion.digest}"
        raise TransientError(
            f"the champion changed meanwhile: expected version {expected.number} with digest {expected.digest}, found "
            f"{present}. Nothing was changed or sent; run the command again to decide about the present champion"
        )


def _unknown(reference: str, name: str | int, shown: Shown) -> str:
    names = ", ".join(
        f"{number} ({version.tags.get('semantic_version')})" for number, version in shown.versions.items()
    )
    known = f"Registered versions: {names or 'none'}"
    if name == CHAMPION:
        return (
            f"There is no champion: no {MODELS[shown.model]} has been promoted. {maker_of(shown.model)} makes one if "
            f"the gate accepts it. {known}"
        )
    return f"{reference} does not exist. {known}; known aliases: {CHAMPION}, {STAGED}, {CANDIDATE}"
