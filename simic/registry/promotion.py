"""Stage a policy and move the champion: a journalled protocol around one row of MLflow's database.

(1) Open an entry in the journal. (2) Label both versions and their runs. (3) Set the alias, which is the commit point.
(4) Fetch the champion, verify every byte and try it. (5) Take the alias ``staged`` away. (6) Close the entry.
(7) Append the version to the list of champions. A staging sets the alias ``staged`` between opening and closing its
entry.

Steps are idempotent. If a process is killed, its open entry is finished if the alias has moved, and closed as rolled
back if not. A closed entry is authoritative: if the alias differs from it later, something else moved the alias.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from simic.contracts.errors import IntegrityError, TransientError
from simic.contracts.names import CHAMPION, STAGED
from simic.contracts.results.receipts import PolicyVersion
from simic.ledgers import POLICIES_LEDGER
from simic.ledgers.ledger import Ledger
from simic.ledgers.policies import extend_list, read_history
from simic.ledgers.promotions import History, Operation, Phase, PromotionEntry, PromotionJournal
from simic.registry.labels import Labels
from simic.registry.ledger_records import read_ledger_records
from simic.registry.models import Models
from simic.runtime.files import scratch_dir
from simic.runtime.home import Home
from simic.trust.keys import Keyring, Signer
from simic.trust.seal import verify

__all__ = ["OnStep", "Promotions", "SmokeTest", "fetch_verified"]

_LOG = logging.getLogger(__name__)
OnStep = Callable[[str], None]
SmokeTest = Callable[[Path, str], None]
"""Tries the policy in a directory, of this digest; raises SmokeTestError, or TransientError to be called again."""
_ATTEMPTS = 3
_PAUSE_S = 0.5


class Promotions:
    """The only code that moves the aliases ``staged`` and ``champion`` of a model; callers hold the registry's lock."""

    def __init__(
        self,
        home: Home,
        models: Models,
        labels: Labels,
        keyring: Keyring,
        signer: Callable[[], Signer],
        on_step: OnStep,
        smoke_test: SmokeTest,
    ) -> None:
        self._home, self._models, self._labels, self._keyring, self._on_step = home, models, labels, keyring, on_step
        self._smoke_test = smoke_test
        self._journal = PromotionJournal(home.ledger, keyring, signer)

    def stage(self, entry: PromotionEntry) -> PromotionEntry:
        """Carry out an open staging and return its closed entry; raise IntegrityError if the files are damaged."""
        fetch_verified(self._models, entry.target, entry.digest, self._keyring, self._home, None)
        self._journal.append(entry)
        self._on_step("staging journalled")
        self._models.set_alias(STAGED, entry.target)
        self._on_step("staging aliased")
        done = self._close(entry, Phase.DONE)
        self._on_step("staging closed")
        return done

    def move(self, entry: PromotionEntry) -> None:
        """Carry out an open entry; raise IntegrityError, and move nothing, if the target's files are damaged."""
        fetch_verified(self._models, entry.target, entry.digest, self._keyring, self._home, None)
        history = self._journal.append(entry).of(self._models.name)
        self._on_step("journalled")
        self._label(_with(history, entry, Phase.DONE), entry)
        self._on_step("tagged")
        self._models.set_alias(CHAMPION, entry.target)
        self._on_step("aliased")
        self._finish(entry)
        self.list_missing()

    def recover(self) -> None:
        """Settle an open entry and complete the list."""
        entry = self._history().open_entry
        if entry is not None:
            if entry.operation is Operation.STAGE:
                is_set = self._models.alias(STAGED) == entry.target
                self._close(entry, Phase.DONE if is_set else Phase.ROLLED_BACK)
            elif self._models.alias(CHAMPION) == entry.target:
                self._finish_late(entry)
            else:
                self._undo(entry)
        self.list_missing()

    def is_settled(self) -> bool:
        """Return whether there is nothing to recover; raise IntegrityError if journal or list is damaged."""
        history = self._history()
        listed = Ledger(self._home.ledger / POLICIES_LEDGER).read()
        return history.open_entry is None and len(history.changes) == len(listed)

    def list_missing(self) -> list[PolicyVersion]:
        """Append the missing versions to the list and return them. Line i is the journal's i-th change of champion."""
        return extend_list(self._home, self._history())

    def _history(self) -> History:
        return read_history(self._home, self._keyring, self._models.name)

    def _label(self, history: History, entry: PromotionEntry) -> None:
        """Label both versions and the experiment in MLflow according to ``history``."""
        moved = [number for number in (entry.source, entry.target) if number is not None]
        shown = self._models.look_at(*moved)
        versions = {number: version for number, version in shown.versions.items() if number in moved}
        self._labels.show(read_ledger_records(self._home, history), shown._replace(versions=versions))

    def _finish(self, entry: PromotionEntry) -> None:
        """Check the champion and close the entry; restore the former champion if it fails, or cannot be tried here."""
        try:
            self._check(entry)
        except (IntegrityError, TransientError):
            self._restore(entry)
            raise
        self._accept(entry)

    def _finish_late(self, entry: PromotionEntry) -> None:
        """Check and close what another process began. A machine that cannot try it leaves the entry open.

        The process that opens the registry now did not ask for this promotion: what fails is undone and logged, and
        a full disk of this process is no reason to undo what another one decided.
        """
        try:
            self._check(entry)
        except IntegrityError as error:
            self._restore(entry)
            _LOG.error("the %s of version %d was undone: %s", entry.operation.value, entry.target, error)
        else:
            self._accept(entry)

    def _check(self, entry: PromotionEntry) -> None:
        """Verify and try the champion through the alias, as its users do."""
        number = self._models.alias(CHAMPION)
        if number != entry.target:
            raise IntegrityError(
                f"the alias {CHAMPION} was set to version {entry.target}, but is on {number}: another process "
                "may have changed it; run `simic doctor`"
            )
        self._try(entry)

    def _accept(self, entry: PromotionEntry) -> None:
        self._on_step("verified")
        self._show_staged(None)
        self._on_step("unstaged")
        self._close(entry, Phase.DONE)
        self._on_step("closed")

    def _restore(self, entry: PromotionEntry) -> None:
        """Set the alias back to the former champion, and undo the entry."""
        if entry.source is None:
            self._models.clear_alias(CHAMPION)
        else:
            self._models.set_alias(CHAMPION, entry.source)
        self._undo(entry)

    def _try(self, entry: PromotionEntry) -> None:
        """Fetch, verify and try the champion; raise the TransientError of the last attempt if the machine refuses."""
        for left in reversed(range(_ATTEMPTS)):
            try:
                with scratch_dir(self._home, "smoke-") as folder:
                    policy = folder / "policy"
                    fetch_verified(self._models, entry.target, entry.digest, self._keyring, self._home, policy)
                    self._smoke_test(policy, entry.digest)
                return
            except TransientError as error:
                _LOG.warning("version %d could not be tried, %d attempts are left: %s", entry.target, left, error)
                if not left:
                    raise
                time.sleep(_PAUSE_S)

    def _undo(self, entry: PromotionEntry) -> None:
        """Restore the labels and what was staged, then close the entry; the alias ``champion`` has not moved."""
        history = self._history()
        self._label(_with(history, entry, Phase.ROLLED_BACK), entry)
        self._show_staged(None if history.staged is None else history.staged.target)
        self._close(entry, Phase.ROLLED_BACK)

    def _show_staged(self, number: int | None) -> None:
        """Set or remove the alias ``staged``."""
        if number is not None:
            self._models.set_alias(STAGED, number)
        elif self._models.alias(STAGED) is not None:
            self._models.clear_alias(STAGED)

    def _close(self, entry: PromotionEntry, phase: Phase) -> PromotionEntry:
        closed = entry.model_copy(update={"phase": phase})
        self._journal.append(closed)
        return closed


def fetch_verified(models: Models, number: int, digest: str, keyring: Keyring, home: Home, into: Path | None) -> None:
    """Fetch the stored files of a version, verify digest and signature, and keep them at ``into`` unless it is None.

    A directory that is already at ``into`` must hold the same policy, and stays.
    """
    with scratch_dir(home, "fetch-") as folder:
        fetched = models.fetch(number, folder / "policy")
        verify(fetched, keyring, digest)
        if into is not None and not into.exists():
            into.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(
                fetched, into
            )  # a rename, unless the home is read-only and the folder is on another file system
    if into is not None:
        verify(into, keyring, digest)


def _with(history: History, entry: PromotionEntry, phase: Phase) -> History:
    """Return the history with its last entry, this one, ended in ``phase``."""
    return history._replace(lines=(*history.lines, entry.model_copy(update={"phase": phase})))
