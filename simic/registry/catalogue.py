"""The registry: candidates on record, one champion, and the way from one to the next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

from simic.contracts.errors import ConfigError, GateRejected, IntegrityError, TransientError
from simic.contracts.policy_update import ValidationSummary
from simic.contracts.receipts import GateDecision, PolicyVersion, Verdict
from simic.lake.ledger import Ledger
from simic.lake.policies import CANDIDATES_LEDGER, GATES_LEDGER
from simic.registry.journal import Operation
from simic.registry.models import CANDIDATE, CHAMPION, MODEL_NAME, Models, Registered
from simic.registry.promotion import OnStep, Promotions, fetch_verified, policy_version
from simic.registry.recording import Evidence, ensure_run, lineage_of, log_run, log_scores, version_tags
from simic.registry.store import initialise, open_client, store_errors
from simic.runtime.clock import Clock
from simic.runtime.locks import exclusive
from simic.runtime.settings import Home
from simic.trust.keys import Keyring
from simic.trust.seal import verify

__all__ = ["CHAMPION_REFERENCE", "Registry"]

CHAMPION_REFERENCE = f"models:/{MODEL_NAME}@{CHAMPION}"
LOCK_WAIT_S = 60.0


def _ignore(_step: str) -> None:
    """Nobody listens."""


class Registry:
    """Policies that were judged. Opening it settles what a killed process left half done."""

    def __init__(self, home: Home, keyring: Keyring, *, clock: Clock, on_step: OnStep = _ignore) -> None:
        """``on_step`` is told every durable step of recording and of moving the champion."""
        self._home, self._keyring, self._on_step = home, keyring, on_step
        with store_errors("opening the registry"):
            self._experiment = initialise(home)
            self._client = open_client(home.tracking_uri)
        self._models = Models(self._client, home.tracking_uri)
        self._promotions = Promotions(home, self._models, keyring, clock, on_step)
        self._gates = Ledger(home.ledger / GATES_LEDGER)
        self._candidates = Ledger(home.ledger / CANDIDATES_LEDGER)
        self._settle()

    def record(self, evidence: Evidence) -> PolicyVersion:
        """Put a judged candidate on record, accepted or not, and point the alias ``candidate`` at it.

        Doing it again for the same policy adds no version; a new judgement replaces the tags of the old one.
        Only a version that was champion keeps the evidence that let it through when a later judgement rejects it:
        production and a rollback rest on that evidence. The rejection is on its run and in the ledger of gates.
        """
        digest = evidence.training.digest
        if {evidence.validation.policy_digest, evidence.gate.policy_digest} != {digest}:
            raise IntegrityError(f"report and gate judge another policy than {digest}")
        policy = Path(evidence.training.path)
        verify(policy, self._keyring, digest)
        with self._writing("recording a candidate"):
            run_id = ensure_run(self._client, self._experiment, evidence)
            log_run(self._client, run_id, evidence)
            self._on_step("logged")
            model_id = self._models.logged_model(self._experiment, run_id, policy, digest)
            self._on_step("stored")
            log_scores(self._client, run_id, model_id, evidence)
            tags = version_tags(evidence)
            version = self._models.by_digest(digest)
            if version is None:
                version = self._models.register(model_id, run_id, lineage_of(policy), tags)
            elif evidence.gate.accepted or not self._promotions.was_promoted(version.number):
                self._models.tag(version.number, tags)
            self._on_step("registered")
            self._models.set_alias(CANDIDATE, version.number)
            receipt = self._receipt(version.number)
            self._finish_run(run_id, evidence.gate, receipt)
            return receipt

    def promote(self, version: PolicyVersion, gate: GateDecision) -> PolicyVersion:
        """Make a recorded candidate champion; the gate must have accepted it against the present champion."""
        with self._writing("promoting a policy"):
            target = self._models.by_digest(version.digest)
            champion = self._models.by_alias(CHAMPION)
            if target is None:
                raise ConfigError(f"policy {version.digest} is not on record; record it first")
            if champion is not None and champion.digest == target.digest:
                return self._receipt(target.number)
            _check_gate(gate, target, champion)
            return self._promotions.move(Operation.PROMOTE, champion, target, gate.digest, "accepted by the gate")

    def rollback(self, reason: str) -> PolicyVersion:
        """Give the title back to the champion before this one; the reason is kept on the version that lost it."""
        with self._writing("rolling back"):
            champion = self._models.by_alias(CHAMPION)
            previous = "none" if champion is None else champion.tags.get("previous", "none")
            if champion is None or previous == "none":
                raise ConfigError("there is no champion before the present one to go back to")
            target = self._models.get(int(previous))
            return self._promotions.move(Operation.ROLLBACK, champion, target, target.tags["gate_digest"], reason)

    def champion(self) -> PolicyVersion | None:
        """The present champion, if there is one."""
        with store_errors("reading the registry"):
            champion = self._models.by_alias(CHAMPION)
            return None if champion is None else self._receipt(champion.number)

    def find(self, reference: str) -> PolicyVersion:
        """The version behind ``models:/tamiyo@champion`` or ``models:/tamiyo/3``."""
        with store_errors(f"resolving {reference}"):
            return self._receipt(self._models.resolve(reference).number)

    def load(self, reference: str, into: Path) -> Path:
        """Fetch the sealed policy behind a reference to ``into``; digest and signature are verified every time."""
        with store_errors(f"loading {reference}"):
            fetch_verified(self._models, self._models.resolve(reference), self._keyring, self._home, into)
        return into

    def summary(self, version: PolicyVersion) -> ValidationSummary:
        """The numbers that let a version through, for those who take it up."""
        with store_errors("reading the registry"):
            tags = self._models.get(version.number).tags
        return ValidationSummary(
            episodes=int(tags["episodes"]),
            return_over_wait=float(tags["return_over_wait"]),
            lower_bound=float(tags["return_over_wait_lower"]),
            confidence=float(tags["confidence"]),
            gate_digest=tags["gate_digest"],
        )

    def _receipt(self, number: int) -> PolicyVersion:
        version = self._models.get(number)
        return policy_version(
            version, datetime.fromisoformat(version.tags.get("promoted_at", version.tags["recorded_at"]))
        )

    def _finish_run(self, run_id: str, gate: GateDecision, version: PolicyVersion) -> None:
        """List the decision and the version it is about, once each; the receipt may still name an earlier decision."""
        if not any(record["gate_digest"] == gate.digest for record in self._candidates.read()):
            judged = {"gate_digest": gate.digest, "started_at": gate.finished_at, "finished_at": gate.finished_at}
            self._candidates.append(version.model_copy(update=judged).model_dump(mode="json"))
        if not any(record["digest"] == gate.digest for record in self._gates.read()):
            self._gates.append(gate.model_dump(mode="json"))
        self._client.set_terminated(run_id, "FINISHED", int(gate.finished_at.timestamp() * 1000))
        self._on_step("recorded")

    @contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        """One writer at a time: aliases know no compare-and-swap."""
        with exclusive(self._home.locks / "registry", what, LOCK_WAIT_S), store_errors(what):
            self._promotions.recover()
            yield

    def _settle(self) -> None:
        if self._promotions.is_settled():
            return
        with ExitStack() as stack:
            try:
                stack.enter_context(exclusive(self._home.locks / "registry", "settling the registry"))
            except TransientError:
                return  # whoever holds the lock is at work on that very entry
            with store_errors("settling the registry"):
                self._promotions.recover()


def _check_gate(gate: GateDecision, target: Registered, champion: Registered | None) -> None:
    """The judgement must be of this policy, favourable, and against the champion that stands now."""
    if gate.policy_digest != target.digest:
        raise IntegrityError(f"the gate judged policy {gate.policy_digest}, not {target.digest}")
    if not gate.accepted:
        failed = ", ".join(c.name for c in gate.criteria if c.verdict is not Verdict.PASS)
        raise GateRejected(f"policy {target.digest[:12]} did not pass the gate: {failed}; the champion stays")
    present = None if champion is None else champion.digest
    if gate.champion_digest != present:
        raise GateRejected(
            f"policy {target.digest[:12]} was judged against champion {gate.champion_digest}, "
            f"but the champion now is {present}; validate it again"
        )
