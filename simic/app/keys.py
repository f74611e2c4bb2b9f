"""Commands on keys: list, rotate, revoke, reseal."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

from simic.app.container import Container
from simic.app.receipts import SEALED_STAGES
from simic.app.resealing import countersign, find_revoked, key_of, registry_lock, reseal, sealed_directories
from simic.contracts.errors import ConfigError, IntegrityError
from simic.contracts.results.keys import KeyChange, KeyList, KeyRecord, KeyStanding, Resealing
from simic.ledgers import CANDIDATES_LEDGER, GATES_LEDGER, PROMOTIONS_LEDGER
from simic.ledgers.promotions import PromotionJournal
from simic.runtime.home import Home
from simic.runtime.locks import exclusive
from simic.trust.ed25519 import KEY_ID, key_id_of
from simic.trust.keys import (
    HOW_TO_MAKE,
    SIGNING_KEY_VARIABLE,
    Keyring,
    Signer,
    is_key_given,
    load_signer,
    present_signer,
    replace_key,
)
from simic.trust.revocation import FORMER_SUFFIX, Revocations, add_revocation

__all__ = ["Keys"]

LOCK_WAIT_S = 30.0
PREFIX_CHARACTERS = 4
"""Least number of characters of a shortened id."""


class Keys:
    """The keys of one home."""

    def __init__(self, container: Container) -> None:
        self._container, self._home = container, container.home
        self._keyring: Keyring = container.keyring

    def listed(self) -> KeyList:
        """Return every key that is trusted, revoked or used for signing; none is created."""
        revoked = self._keyring.revocations()
        own, problem = self._present()
        known = {*self._keyring.lying(), *revoked.by_key, *([own.key_id] if own else [])}
        signed = _signed(self._home)
        records = [self._record(key_id, own, revoked, signed) for key_id in sorted(known)]
        order = list(KeyStanding)
        return KeyList(keys=sorted(records, key=lambda record: order.index(record.standing)), signing_problem=problem)

    def rotate(self) -> KeyChange:
        """Replace the signing key of this home; signatures of the old key stay valid.

        Raises:
            ConfigError: if the environment holds the signing key.
        """
        if is_key_given(os.environ):
            raise ConfigError(
                f"{SIGNING_KEY_VARIABLE} holds the signing key, which `simic keys rotate` cannot change. Set the "
                f"variable to another key ({HOW_TO_MAKE}), then run `simic init`; what the old key signed stays trusted"
            )
        with self._changing("rotating the signing key"):
            return self._changed(replace_key(self._home.keys), is_new=True, revoked=None)

    def revoke(self, name: str, reason: str) -> KeyChange:
        """Stop trusting a key; if it signs for this home, a new one is created first.

        Repeating the call changes nothing, and completes what a killed process left. An id that is not known here is
        revoked too: a step of the result says so, and names the keys that are still trusted.

        Args:
            name: An id, or the first characters of a known one.
            reason: Stored in the revocation list.

        Raises:
            ConfigError: if no key or several have that name, or the reason is empty.
        """
        if not reason.strip():
            raise ConfigError("a revocation needs a reason: give --reason; the revocation list keeps it")
        with self._changing("revoking a key"):
            own, _ = self._present()
            key_id = self._resolve(name, own)
            signer, is_new = self._signer_to_revoke(key_id, own)
            public_bytes = self._public_bytes(key_id, own)
            moment = self._container.clock()
            with registry_lock(self._home):
                add_revocation(self._home.keys, key_id, public_bytes, reason=reason, at=moment, signer=signer)
                self._keyring.distrust(key_id)
            return self._changed(signer, is_new=is_new, revoked=key_id)

    def reseal(self, *, is_dry_run: bool, head: str | None = None) -> Resealing:
        """Sign again what revoked keys signed, as far as the journal of promotions names its content.

        Unless ``is_dry_run``, the present key signs for every earlier line of the journal: only the operator knows
        which of them were written before the key was lost. ``head`` is the one that a dry run showed; raises
        IntegrityError if the journal has changed since.
        """
        with self._changing("sealing again"):
            return reseal(self._container, is_dry_run=is_dry_run, head=head)

    # -- changing ---------------------------------------------------------------------------------

    @contextmanager
    def _changing(self, what: str) -> Iterator[None]:
        try:
            with exclusive(self._home.locks / "keys", what, LOCK_WAIT_S):
                yield
        finally:
            self._container.forget_signer()

    def _signer_to_revoke(self, key_id: str, own: Signer | None) -> tuple[Signer, bool]:
        """Return the key that signs the revocation, and whether it was created for that.

        A key of the environment revokes itself: no other key there could sign, and its successor is not chosen here.
        """
        if own is None or own.key_id != key_id:
            return load_signer(self._home.keys, os.environ), False
        if is_key_given(os.environ):
            if key_id not in self._keyring.revocations().by_key:
                self._keyring.trust(own.public_bytes)  # only a key that was trusted here may revoke
            return own, False
        return replace_key(self._home.keys), True

    def _changed(self, signer: Signer, *, is_new: bool, revoked: str | None) -> KeyChange:
        steps: list[str] = []
        if signer.key_id == revoked:
            steps.append(
                f"{SIGNING_KEY_VARIABLE} holds the key that was revoked, so nothing can be signed: put another key "
                f"there ({HOW_TO_MAKE}), or unset it to use a key of this home"
            )
        if revoked is not None and not self._is_known(revoked):
            trusted = ", ".join(sorted({*self._keyring.key_ids(), signer.key_id}))
            steps.append(
                f"{revoked} is no key of this home: its public half was never here, or is lost. It will not be trusted "
                f"if it comes. If the id is mistyped, revoke the right one too; keys still trusted: {trusted}"
            )
        is_countersigned = False
        affected = find_revoked(self._home, self._keyring)
        if affected.lines or affected.directories:
            steps.append(
                "`simic keys reseal` lists what the revoked key signed and the journal of promotions names; with --yes "
                "the present key signs it again. Until then neither is trusted, the champion included"
            )
        if not affected.lines and signer.key_id != revoked:
            reason = "the signing key was rotated" if revoked is None else f"key {revoked} was revoked"
            is_countersigned = countersign(self._container, signer, reason)
        return KeyChange(
            signing_key=None if signer.key_id == revoked else signer.key_id,
            is_new=is_new,
            revoked=revoked,
            is_countersigned=is_countersigned,
            next_steps=steps,
        )

    # -- looking ----------------------------------------------------------------------------------

    def _present(self) -> tuple[Signer | None, str | None]:
        """Return the present signing key, and the reason why it must not be used."""
        try:
            own = present_signer(self._home.keys, os.environ)
        except ConfigError as error:
            return None, str(error)
        if own is not None and own.key_id in self._keyring.revocations().by_key:
            try:
                load_signer(self._home.keys, os.environ)
            except ConfigError as error:
                return own, str(error)
        return own, None

    def _is_known(self, revoked: str) -> bool:
        """Return whether the public half of a revoked key is on record here."""
        revocation = self._keyring.revocations().by_key[revoked]
        return revocation.public_key is not None or (self._home.keys / f"{revoked}{FORMER_SUFFIX}").exists()

    def _resolve(self, name: str, own: Signer | None) -> str:
        known = {*self._keyring.lying(), *self._keyring.revocations().by_key, *([own.key_id] if own else [])}
        matches = sorted(key_id for key_id in known if key_id.startswith(name))
        if KEY_ID.fullmatch(name):
            return name  # may be a key that was never here: it must not be trusted if it appears later
        if len(name) < PREFIX_CHARACTERS or len(matches) != 1:
            raise ConfigError(
                f"{name!r} is not a key: expected 16 hex characters, or the first {PREFIX_CHARACTERS} or more of one "
                f"known key; known keys: {', '.join(sorted(known)) or 'none'}"
            )
        return matches[0]

    def _public_bytes(self, key_id: str, own: Signer | None) -> bytes | None:
        if own is not None and own.key_id == key_id:
            return own.public_bytes
        try:
            return self._keyring.public_bytes(key_id)
        except IntegrityError:
            return self._remembered(key_id)

    def _remembered(self, key_id: str) -> bytes | None:
        """Return the public half of an already revoked key from the journal of promotions."""
        journal = PromotionJournal(self._home.ledger, self._keyring)
        try:
            public_bytes = bytes.fromhex(journal.recorded_revocations().get(key_id) or "")
        except (IntegrityError, ValueError, TypeError):
            return None
        return public_bytes if key_id_of(public_bytes) == key_id else None

    def _record(
        self, key_id: str, own: Signer | None, revoked: Revocations, signed: dict[str, Counter[str]]
    ) -> KeyRecord:
        revocation = revoked.by_key.get(key_id)
        path = self._home.keys / f"{key_id}.pub"
        is_signing = own is not None and own.key_id == key_id
        since = datetime.fromtimestamp(path.stat().st_mtime, UTC) if path.exists() else None
        return KeyRecord(
            key_id=key_id,
            standing=KeyStanding.REVOKED if revocation else KeyStanding.OWN if is_signing else KeyStanding.TRUSTED,
            since=since if revocation is None else revocation.at,
            reason=None if revocation is None else revocation.reason,
            is_signing=is_signing,
            **{what: counts[key_id] for what, counts in signed.items()},
        )


def _signed(home: Home) -> dict[str, Counter[str]]:
    """Count the policies, receipts and journal lines that name each key."""
    receipts = (path.read_bytes() for stage in SEALED_STAGES for path in (home.receipts / stage).glob("*.json"))
    recorded = (line for name in (GATES_LEDGER, CANDIDATES_LEDGER) for line in _lines(home.ledger / name))
    return {
        "policies": Counter(key_id for _, key_id in sealed_directories(home)),
        "receipts": _count(chain(receipts, recorded)),
        "journal_lines": _count(_lines(home.ledger / PROMOTIONS_LEDGER)),
    }


def _lines(path: Path) -> Iterator[bytes]:
    if path.exists():
        with path.open("rb") as file:
            yield from file


def _count(texts: Iterable[bytes]) -> Counter[str]:
    """Count texts by the key that each names; one of them at a time is in memory."""
    return Counter(key_id for text in texts if (key_id := key_of(text)) is not None)
