"""Retention drops parts by age and by bytes; vacuum deletes files that no query can be reading any more.

A drop is one ledger line. Tombstones of the dropped reports are written before it and named in it, so a report that is
delivered again is a duplicate and does not land as new.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

from simic.contracts.errors import IntegrityError
from simic.lake.lake import Lake, write_ids
from simic.lake.log import Dropped, Part, TombstoneFile, TombstonesExpired
from simic.lake.parts import check_part
from simic.runtime.files import sha256_file

__all__ = ["VacuumResult", "drop", "expire_tombstones", "older_than", "over_bytes", "vacuum"]

Checkpoint = Callable[[str], None]


def older_than(parts: Sequence[Part], oldest: datetime) -> list[Part]:
    """Return parts whose newest row landed before ``oldest``; pure."""
    return [part for part in parts if part.landed_at < oldest]


def over_bytes(parts: Sequence[Part], max_bytes: int) -> list[Part]:
    """Return the fewest first parts of the lake without which the others take at most ``max_bytes``; pure."""
    excess = sum(part.size_bytes for part in parts) - max_bytes
    dropped = []
    for part in parts:
        if excess <= 0:
            break
        dropped.append(part)
        excess -= part.size_bytes
    return dropped


def drop(
    lake: Lake,
    parts: Sequence[Part],
    reason: Literal["age", "bytes"],
    *,
    at: datetime,
    code_version: str,
    checkpoint: Checkpoint = lambda _point: None,
) -> Lake:
    """Drop parts by one ledger line; the caller holds the lake's lock.

    ``checkpoint`` is called with ``remembered`` once the tombstones are durable, then with ``committed``.

    Raises:
        IntegrityError: if a part is damaged, because its ids would become tombstones; nothing is changed.
    """
    for part in parts:
        check_part(lake.store, part)
    digest = hashlib.sha256("".join(part.sha256 for part in parts).encode()).hexdigest()
    path = lake.home.ids / f"dropped-{digest[:16]}.parquet"
    rows, expected = write_ids(lake, parts, path), sum(part.rows for part in parts)
    if rows != expected:
        raise IntegrityError(
            f"the ledger lists {expected} rows in parts to be dropped, found {rows}; see `simic doctor`"
        )
    tombstones = TombstoneFile(file=path.name, rows=rows, sha256=sha256_file(path), dropped_at=at)
    checkpoint("remembered")
    after = lake.commit(
        Dropped(
            at=at,
            code_version=code_version,
            reason=reason,
            parts=[part.part for part in parts],
            rows=rows,
            size_bytes=sum(part.size_bytes for part in parts),
            remembered=tombstones,
        )
    )
    checkpoint("committed")
    return after


def expire_tombstones(lake: Lake, before: datetime, *, at: datetime, code_version: str) -> Lake:
    """Expire tombstones older than ``before``. Appends one ledger line, or none."""
    old = [file.file for file in lake.state.tombstones if file.dropped_at < before]
    return lake.commit(TombstonesExpired(at=at, code_version=code_version, files=old)) if old else lake


class VacuumResult(NamedTuple):
    """Files that a vacuum deleted and left."""

    deleted: list[str]
    waiting: list[str]
    """Retired files within their grace period."""


def vacuum(
    lake: Lake, *, now: datetime, grace: timedelta, checkpoint: Checkpoint = lambda _point: None
) -> VacuumResult:
    """Delete files of parts that were retired longer than ``grace`` ago, and tombstones that expired.

    The line that retired a file is durable before the file is deleted; the caller holds the lake's lock.
    ``checkpoint`` is called with ``deleted`` after each file.

    Raises:
        IntegrityError: if the claim of this writer is no longer in the store; parts that another home may read stay.
    """
    live = {part.part for part in lake.parts}
    retired = [name for name in lake.store.names() if name in lake.state.retired and name not in live]
    deleted, waiting = [], []
    for name in retired:
        if lake.state.retired[name] > now - grace:
            waiting.append(name)
            continue
        lake.check_held()
        lake.store.delete(name)
        checkpoint("deleted")
        deleted.append(name)
    kept = {tombstones.file for tombstones in lake.state.tombstones}
    kept |= {f"part-{part.sha256[:16]}.parquet" for part in lake.parts}
    for path in sorted(lake.home.ids.glob("*.parquet")):
        if path.name not in kept:
            path.unlink()
            checkpoint("deleted")
    return VacuumResult(deleted, waiting)
