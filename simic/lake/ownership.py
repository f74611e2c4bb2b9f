"""Ownership of a prefix in an object store: one home writes to it, and a copy of that home does not.

The object ``simic-home`` below the prefix names the home and the claim of its newest writer. Every writer replaces the
claim by a random one before it changes anything, and keeps it in ``data/ledger/lake.claim``. Of two copies of a home
the first one to write keeps the prefix; the other one has an old claim and is refused. A home that moved takes its
claim along. Arrow has no conditional writes, so two copies may claim in the same instant; the loser is refused before
its first ledger line, because every line is preceded by a check.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from simic.contracts.errors import IntegrityError
from simic.lake.store import OWNER, ArrowParts
from simic.runtime.files import atomic_write, os_error_as_transient
from simic.runtime.settings import Home

__all__ = ["check_claim", "claim"]

_HOME_ID = "home.id"
"""File beside the ledgers, so that it is backed up and restored with them."""
_CLAIM = "lake.claim"
"""File beside it: the claim of this home, and the next one while it is being written to the store."""


def check_claim(home: Home, store: ArrowParts) -> str:
    """Return the claim in the store, after checking that no other home and no copy of this one wrote it.

    The claim is empty if there is none yet. Changes nothing.

    Raises:
        IntegrityError: if the prefix belongs to another home or to a copy of this one.
        TransientError: if the store does not answer.
    """
    owner = store.owner()
    if owner is None:
        return ""
    found, _, claimed = owner.partition("\n")
    known = _read(home.ledger / _HOME_ID)
    if found != known:
        raise IntegrityError(
            f"{store.place} belongs to home {found}, this is {known or 'a home without an id'}: name another prefix, "
            f"or restore {home.ledger / _HOME_ID} from a backup if this is that home"
        )
    if claimed and claimed not in _read(home.ledger / _CLAIM).split():
        raise IntegrityError(
            f"{store.place} was written by a copy of {home.root}, or by a later state of it, since this home wrote "
            f"there: two homes cannot share a prefix. If this is the copy, begin in a new home with another prefix. If "
            f"this home shall go on instead, stop the other one for good, delete the object {store.place}/{OWNER}, and "
            f"give the same command again"
        )
    return claimed


def claim(home: Home, store: ArrowParts) -> None:
    """Claim the prefix for the writer that holds the lake's lock; a killed claim is repeated by the next writer.

    Raises:
        IntegrityError: as ``check_claim``.
        TransientError: if the store or the disk cannot be written.
    """
    before = check_claim(home, store)
    known = _read(home.ledger / _HOME_ID)
    if not known:
        known = secrets.token_hex(16)
        _write(home, _HOME_ID, known)
    claimed = secrets.token_hex(16)
    _write(home, _CLAIM, f"{before}\n{claimed}")  # both count until the store has the new one
    store.own(f"{known}\n{claimed}")
    _write(home, _CLAIM, claimed)
    check_claim(home, store)


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii").strip()
    except FileNotFoundError:
        return ""


def _write(home: Home, name: str, text: str) -> None:
    with os_error_as_transient(f"write {name}"):
        atomic_write(home.ledger / name, text.encode(), tmp=home.tmp)
