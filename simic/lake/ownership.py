"""Ownership of a prefix in an object store: one home writes to it, and a copy of that home does not.

A claim is an object ``simic-home.<home id>.<random>`` below the prefix; ``data/ledger/lake.claim`` names the claims of
this home. A writer first adds a claim of its own, then lists the claims, and withdraws if it finds one that is not in
its file; otherwise it deletes its earlier claims. Of two writers at least the second one to add its claim sees the
other, so at most one writes and both may be refused. That needs a store that lists an object as soon as it is written,
as S3 does; it needs no conditional write, which Arrow does not have.

Of two copies of a home the first one to write keeps the prefix; the other one does not know the new claim and is
refused. A home that moved takes its claim along. A copy that is made while its home writes knows the claim of that
writer and takes the prefix from it: the writer is refused before its next ledger line, but lines that the copy lacks
are lost to it. Copy a home only while nothing writes to it.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from simic.contracts.errors import IntegrityError
from simic.lake.store import CLAIM_PREFIX, ArrowParts
from simic.runtime.files import atomic_write, os_error_as_transient
from simic.runtime.home import Home

__all__ = ["check_claims", "check_held", "claim"]

_HOME_ID = "home.id"
"""File beside the ledgers, so that it is backed up and restored with them."""
_CLAIMS = "lake.claim"
"""File beside it: the claim of the newest writer, or every claim that may be in the store while one is being added."""


def check_claims(home: Home, store: ArrowParts) -> None:
    """Check that every claim in the store is of this home. Changes nothing, and needs no lock.

    Raises:
        IntegrityError: if the prefix belongs to another home or to a copy of this one.
        TransientError: if the store does not answer.
    """
    while True:
        known = _read(home.ledger / _CLAIMS).split()
        unknown = store.claims().difference(known)
        if not unknown:
            return
        if known == _read(home.ledger / _CLAIMS).split():  # otherwise a writer of this home claims in this moment
            raise _refusal(home, store, unknown)


def check_held(home: Home, store: ArrowParts) -> None:
    """Check that the claim of this writer is still in the store. The caller holds the lake's lock and has claimed.

    Raises:
        IntegrityError: if somebody deleted it, after which another home or a copy of this one may write.
        TransientError: if the store does not answer.
    """
    known = _read(home.ledger / _CLAIMS).split()
    if len(known) != 1 or not store.has_claim(known[0]):
        raise IntegrityError(
            f"the claim of {home.root} on {store.place} was deleted while this home wrote there, so a copy of it may "
            "write, too: nothing more was changed. Stop the other one for good, and give the same command again"
        )


def claim(home: Home, store: ArrowParts) -> None:
    """Claim the prefix for the writer that holds the lake's lock; a killed claim is repeated by the next writer.

    Raises:
        IntegrityError: as ``check_claims``.
        TransientError: if the store or the disk cannot be written.
    """
    check_claims(home, store)
    if not (home_id := _read(home.ledger / _HOME_ID)):
        home_id = secrets.token_hex(16)
        _write(home, _HOME_ID, home_id)
    earlier = _read(home.ledger / _CLAIMS).split()
    mine = f"{home_id}.{secrets.token_hex(16)}"
    _write(home, _CLAIMS, "\n".join([*earlier, mine]))  # a kill may leave any of them in the store
    store.add_claim(mine)
    claims = store.claims()
    if unknown := claims.difference(earlier, [mine]):
        store.drop_claim(mine)
        raise _refusal(home, store, unknown)
    for old in claims.intersection(earlier):
        store.drop_claim(old)
    _write(home, _CLAIMS, mine)


def _refusal(home: Home, store: ArrowParts, unknown: set[str]) -> IntegrityError:
    home_id = _read(home.ledger / _HOME_ID)
    if foreign := sorted(name.partition(".")[0] for name in unknown if not name.startswith(f"{home_id}.")):
        return IntegrityError(
            f"{store.place} belongs to home {foreign[0]}, this is {home_id or 'a home without an id'}: name another "
            f"prefix, or restore {home.ledger / _HOME_ID} from a backup if this is that home"
        )
    return IntegrityError(
        f"{store.place} was written by a copy of {home.root}, or by a later state of it, since this home wrote "
        f"there: two homes cannot share a prefix. If this is the copy, begin in a new home with another prefix. If "
        f"this home shall go on instead, stop the other one for good, delete the objects {store.place}/{CLAIM_PREFIX}* "
        f"and give the same command again"
    )


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii").strip()
    except FileNotFoundError:
        return ""


def _write(home: Home, name: str, text: str) -> None:
    with os_error_as_transient(f"write {name}"):
        atomic_write(home.ledger / name, text.encode(), tmp=home.tmp)
