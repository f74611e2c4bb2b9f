"""Moving the champion: a journalled protocol around one row.

(1) open an entry in the journal; (2) tag the version; (3) set the alias, which is the commit point; (4) fetch the
champion through the alias and verify every byte; (5) close the entry; (6) list the version for people.
Steps are idempotent. An open entry of a killed process is finished when the alias had moved, and closed as
rolled back when it had not.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from tempfile import mkdtemp

from simic.contracts.errors import IntegrityError
from simic.contracts.receipts import PolicyVersion
from simic.lake.ledger import Ledger
from simic.registry.journal import Entry, Journal, Operation, Phase
from simic.registry.models import CHAMPION, Models, Registered
from simic.runtime.clock import Clock
from simic.runtime.settings import Home
from simic.trust.keys import Keyring
from simic.trust.seal import verify

__all__ = ["OnStep", "Promotions", "fetch_verified", "policy_version"]

_LOG = logging.getLogger(__name__)
OnStep = Callable[[str], None]


class Promotions:
    """The one mover of the alias; its user holds the registry's lock."""

    def __init__(self, home: Home, models: Models, keyring: Keyring, clock: Clock, on_step: OnStep) -> None:
        self._home, self._models, self._keyring = home, models, keyring
        self._clock, self._on_step = clock, on_step
        self._journal = Journal(home.ledger / "promotions.jsonl")
        self._listed = Ledger(home.ledger / "policies.jsonl")

    def move(
        self, operation: Operation, source: Registered | None, target: Registered, gate_digest: str, reason: str
    ) -> PolicyVersion:
        """Make ``target`` champion in place of ``source``; if it is not whole, IntegrityError and nothing moves."""
        fetch_verified(self._models, target, self._keyring, self._home, None)
        entry = Entry(
            entry=self._journal.next_number(),
            phase=Phase.OPEN,
            operation=operation,
            source=None if source is None else source.number,
            target=target.number,
            digest=target.digest,
            gate_digest=gate_digest,
            reason=reason,
            at=self._clock(),
        )
        self._journal.append(entry)
        self._on_step("journalled")
        self._tag(entry)
        self._on_step("tagged")
        self._models.set_alias(CHAMPION, target.number)
        self._on_step("aliased")
        self._finish(entry)
        return self.list_missing()[-1]

    def recover(self) -> None:
        """Settle an open entry and complete the list."""
        entry = self._journal.open_entry()
        if entry is not None:
            champion = self._models.by_alias(CHAMPION)
            if champion is not None and champion.number == entry.target:
                self._finish_late(entry)
            else:
                self._close(entry, Phase.ROLLED_BACK)
        self.list_missing()

    def is_settled(self) -> bool:
        """Nothing to recover."""
        return self._journal.open_entry() is None and not self._unlisted()

    def was_promoted(self, number: int) -> bool:
        """Whether the gate ever let this version through to the title."""
        return any(
            (entry.operation, entry.phase, entry.target) == (Operation.PROMOTE, Phase.DONE, number)
            for entry in self._journal.entries()
        )

    def list_missing(self) -> list[PolicyVersion]:
        """Append what the list lacks; returns those. Line i of the list is the journal's i-th finished entry."""
        versions = [self._listing(entry) for entry in self._unlisted()]
        for version in versions:
            self._listed.append(version.model_dump(mode="json"))
        return versions

    def _unlisted(self) -> list[Entry]:
        done = [entry for entry in self._journal.entries() if entry.phase is Phase.DONE]
        return done[len(self._listed.read()) :]

    def _listing(self, entry: Entry) -> PolicyVersion:
        version = policy_version(self._models.get(entry.target), entry.at)
        return version.model_copy(update={"previous": entry.source, "gate_digest": entry.gate_digest})

    def _tag(self, entry: Entry) -> None:
        moment = entry.at.isoformat()
        if entry.operation is Operation.PROMOTE:
            previous = "none" if entry.source is None else str(entry.source)
            self._models.tag(entry.target, {"promoted_at": moment, "previous": previous})
        elif entry.source is not None:
            self._models.tag(entry.source, {"rolled_back_at": moment, "rolled_back_because": entry.reason})

    def _finish(self, entry: Entry) -> None:
        """Verify the champion as everybody else will see it; put the old one back if it is not what was promised."""
        try:
            champion = self._models.by_alias(CHAMPION)
            if champion is None or champion.digest != entry.digest:
                raise IntegrityError(f"the champion is not {entry.digest}, found {champion}")
            fetch_verified(self._models, champion, self._keyring, self._home, None)
        except IntegrityError:
            if entry.source is None:
                self._models.clear_alias(CHAMPION)
            else:
                self._models.set_alias(CHAMPION, entry.source)
            self._close(entry, Phase.ROLLED_BACK)
            raise
        self._on_step("verified")
        self._close(entry, Phase.DONE)
        self._on_step("closed")

    def _finish_late(self, entry: Entry) -> None:
        try:
            self._finish(entry)
        except IntegrityError as error:
            # The old champion is back; whoever opened the registry now did not ask for this promotion.
            _LOG.error("the %s of version %d was undone: %s", entry.operation.value, entry.target, error)

    def _close(self, entry: Entry, phase: Phase) -> None:
        self._journal.append(entry.model_copy(update={"phase": phase}))


def fetch_verified(models: Models, version: Registered, keyring: Keyring, home: Home, into: Path | None) -> None:
    """Fetch what the registry stores and verify digest and signature; keep it at ``into`` unless that is None.

    A directory that already stands at ``into`` must be the same policy, and stays.
    """
    home.tmp.mkdir(parents=True, exist_ok=True)
    scratch = Path(mkdtemp(prefix="fetch-", dir=home.tmp))
    try:
        fetched = models.fetch(version, scratch / "policy")
        verify(fetched, keyring, version.digest)
        if into is not None and not into.exists():
            into.parent.mkdir(parents=True, exist_ok=True)
            fetched.rename(into)
    finally:
        shutil.rmtree(scratch)
    if into is not None:
        verify(into, keyring, version.digest)


def policy_version(version: Registered, at: datetime) -> PolicyVersion:
    """The receipt of a registered version, from its tags."""
    tags = version.tags
    previous = tags.get("previous", "none")
    return PolicyVersion(
        code_version=tags["code_version"],
        config_digest=tags["config_digest"],
        seed=int(tags["seed"]),
        started_at=at,
        finished_at=at,
        name=version.name,
        number=version.number,
        semantic_version=version.semantic_version,
        digest=version.digest,
        reference=f"models:/{version.name}/{version.number}",
        aliases=version.aliases,
        previous=None if previous == "none" else int(previous),
        snapshot_digest=tags["snapshot"],
        gate_digest=tags["gate_digest"],
        mlflow_run_id=version.run_id,
    )
