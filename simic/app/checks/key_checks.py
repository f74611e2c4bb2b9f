"""Checks of the doctor on keys: trusted and revoked keys, file modes, and seals of receipts."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from simic.app.checks.health import damaged, healthy, repairable, repaired, summarise
from simic.app.receipts import ReceiptStore
from simic.app.resealing import find_revoked
from simic.contracts.errors import ConfigError, IntegrityError, SimicError
from simic.contracts.results.gate import GateDecision
from simic.contracts.results.lake import Check
from simic.ledgers import GATES_LEDGER
from simic.ledgers.ledger import Ledger
from simic.ledgers.promotions import PromotionJournal
from simic.runtime.clock import Clock
from simic.runtime.home import Home
from simic.trust.keys import SIGNING_KEY_VARIABLE, Keyring, Signer, is_key_given, load_signer, present_signer
from simic.trust.sealed_receipts import read_receipt

__all__ = ["examine_keys"]

RESEAL = "`simic keys reseal` shows what the journal of promotions still confirms, and signs it again with --yes"
_MOVE_AWAY = "move it away: this receipt is not trusted"


def examine_keys(home: Home, clock: Clock, *, is_deep: bool, is_repair: bool) -> Iterator[Check]:
    """Check keys, the revocation list, and files among the sealed receipts; with ``is_deep`` also every seal."""
    keyring = Keyring(home.keys)
    try:
        revoked = keyring.revocations().by_key
    except IntegrityError as error:
        yield damaged("revocation list", str(error), "see the message; until it is repaired, no key is trusted")
        return
    revoked_keys = summarise([f"{key_id} ({revoked[key_id].at:%Y-%m-%d})" for key_id in revoked]) if revoked else "none"
    yield healthy("keys", f"trusted: {', '.join(keyring.key_ids()) or 'none yet'}; revoked: {revoked_keys}")
    yield _signing_key(home)
    yield from _folder(home)
    yield from _lying(keyring, is_repair=is_repair)
    yield from _journal(home, keyring)
    yield from _seals(home, keyring, clock) if is_deep else _unreadable(home, keyring, clock)


def _signing_key(home: Home) -> Check:
    try:
        present = present_signer(home.keys, os.environ)
        if present is None:
            return healthy("signing key", "none yet; the first verb that signs makes one")
        if present.key_id in _revoked(home):
            load_signer(home.keys, os.environ)
    except ConfigError as error:
        remedy = "see the message; if others could read the key, `simic keys revoke` it"
        return damaged("signing key", str(error), remedy)
    where = SIGNING_KEY_VARIABLE if is_key_given(os.environ) else "signing.key"
    return healthy("signing key", f"{present.key_id}, from {where}")


def _revoked(home: Home) -> set[str]:
    return set(Keyring(home.keys).revocations().by_key)


def _folder(home: Home) -> Iterator[Check]:
    if not home.keys.exists():
        return
    mode = stat.S_IMODE(home.keys.stat().st_mode)
    if mode & 0o022:
        problem = f"{home.keys} has mode {mode:o}: others may put public keys there, which would be trusted"
        yield damaged("folder of keys", problem, f"run: chmod 700 {home.keys}; then look at `simic keys list`")


def _lying(keyring: Keyring, *, is_repair: bool) -> Iterator[Check]:
    revoked = keyring.revocations().by_key
    for key_id in keyring.lying():
        if key_id not in revoked:
            continue
        problem = f"{key_id}.pub lies in the folder, but that key was revoked: it does not count"
        if is_repair:
            keyring.distrust(key_id)
            yield repaired(f"key {key_id}", problem, f"renamed to {key_id}.revoked")
        else:
            yield repairable(f"key {key_id}", problem, f"rename it to {key_id}.revoked; find out who put it there")


def _journal(home: Home, keyring: Keyring) -> Iterator[Check]:
    try:
        if missing := PromotionJournal(home.ledger, keyring).unlisted():
            says = (
                f"the journal of promotions says that these were revoked, and the list does not: {summarise(missing)}"
            )
            remedy = "restore it from a backup, or `simic keys revoke` each of them again"
            yield damaged("revocation list", says, remedy)
            return
        revoked = find_revoked(home, keyring)
    except IntegrityError:
        return  # a damaged journal is reported as such
    if revoked.lines:
        numbers = ", ".join(str(signed.number) for signed in revoked.lines)
        yield damaged("lines by a revoked key", f"only such a key signed lines {numbers} of the journal", RESEAL)
    for path in revoked.directories:
        yield damaged(f"policy {path}", "a revoked key sealed it", RESEAL)


def _unreadable(home: Home, keyring: Keyring, clock: Clock) -> Iterator[Check]:
    for path, error in ReceiptStore(home, clock, _no_signer, keyring).unreadable():
        yield damaged(f"receipt {path.name}", str(error), _MOVE_AWAY)


def _seals(home: Home, keyring: Keyring, clock: Clock) -> Iterator[Check]:
    sound = 0
    for path, error in ReceiptStore(home, clock, _no_signer, keyring).check_seals():
        if error is None:
            sound += 1
        else:
            yield damaged(f"receipt {path.name}", str(error), _MOVE_AWAY)
    ledger = home.ledger / GATES_LEDGER
    try:
        records = Ledger(ledger).read()
    except IntegrityError:
        return  # a damaged ledger is reported as such
    for number, record in enumerate(records, 1):
        try:
            read_receipt(GateDecision, record, keyring, f"{ledger}, line {number}")
            sound += 1
        except SimicError as error:
            remedy = "restore it from a backup; champions are judged by the digest that the journal names"
            yield damaged(f"{GATES_LEDGER}, line {number}", str(error), remedy)
    yield healthy("seals", f"{sound} receipts and gate decisions are as a trusted key sealed them")


def _no_signer() -> Signer:
    raise AssertionError("the doctor signs nothing")
