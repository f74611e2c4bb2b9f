"""The journal of this home's own collections, written before their first report leaves.

In a collection a policy explores, so its episodes say nothing about the policy in production. All reports of one carry
the moment of its start.
"""

from __future__ import annotations

from datetime import datetime

from simic.contracts.base import Contract, Digest, UtcDatetime
from simic.ledgers import COLLECTIONS_LEDGER
from simic.ledgers.ledger import Ledger
from simic.runtime.home import Home
from simic.runtime.locks import exclusive

__all__ = ["CollectionEntry", "begin_collection", "collection_starts"]

_WAIT_S = 60.0


class CollectionEntry(Contract):
    """A line of the journal."""

    policy: Digest
    """Digest of the policy that acts."""
    started_at: UtcDatetime


def begin_collection(home: Home, policy: str, started_at: datetime) -> None:
    """Note a collection that is about to begin.

    Raises:
        TransientError: if the journal is locked or cannot be written.
    """
    entry = CollectionEntry(policy=policy, started_at=started_at)
    with exclusive(home.locks / "collections", "the journal of collections", _WAIT_S):
        _ledger(home).append(entry.model_dump(mode="json"))


def collection_starts(home: Home, policy: str) -> set[datetime]:
    """Return when this home's collections with a policy began.

    Raises:
        IntegrityError: if the journal is damaged.
    """
    entries = (CollectionEntry.model_validate(line) for line in _ledger(home).read())
    return {entry.started_at for entry in entries if entry.policy == policy}


def _ledger(home: Home) -> Ledger:
    return Ledger(home.ledger / COLLECTIONS_LEDGER)
