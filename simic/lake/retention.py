"""Parts leave the lake by age and by bytes; files nobody can be reading any more are deleted later.

A drop is one ledger line. The ids of dropped reports are written down before it and named in it, so that a report told
again is recognised as a repetition and does not come back as new.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

from simic.contracts.errors import IntegrityError
from simic.lake.lake import Lake, write_ids
from simic.lake.operations import Dropped, Forgotten, Part, Remembered
from simic.lake.parts import check_part, file_digest
from simic.runtime.durable import sync_folder

__all__ = ["Swept", "drop", "forget", "older_than", "over_bytes", "vacuum"]

Checkpoint = Callable[[str], None]


def older_than(parts: Sequence[Part], oldest: datetime) -> list[Part]:
    """Parts whose newest row landed before ``oldest``. Pure."""
    return [part for part in parts if part.landed_at < oldest]


def over_bytes(parts: Sequence[Part], max_bytes: int) -> list[Part]:
    """The first parts in the order of the lake without which the others are no more than ``max_bytes``. Pure."""
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
    """Takes parts out, in one line; the caller holds the lake's lock.

    ``checkpoint`` hears ``remembered`` and ``committed``. Raises IntegrityError, and changes nothing, if a part is not
    what was committed: its ids would be believed from then on.
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
    sync_folder(path.parent)
    remembered = Remembered(file=path.name, rows=rows, sha256=file_digest(path), dropped_at=at)
    checkpoint("remembered")
    after = lake.commit(
        Dropped(
            at=at,
            code_version=code_version,
            reason=reason,
            parts=[part.part for part in parts],
            rows=rows,
            size_bytes=sum(part.size_bytes for part in parts),
            remembered=remembered,
        )
    )
    checkpoint("committed")
    return after


def forget(lake: Lake, before: datetime, *, at: datetime, code_version: str) -> Lake:
    """Ids dropped before a moment are known no longer; one line, or none if there are none."""
    old = [remembered.file for remembered in lake.state.remembered if remembered.dropped_at < before]
    return lake.commit(Forgotten(at=at, code_version=code_version, files=old)) if old else lake


class Swept(NamedTuple):
    """What a vacuum did."""

    deleted: list[str]
    waiting: list[str]
    """Still within their time of grace."""


def vacuum(lake: Lake, *, now: datetime, grace: timedelta, checkpoint: Checkpoint = lambda _point: None) -> Swept:
    """Deletes the files of parts retired longer than ``grace`` ago, and ids that no line names any more.

    Never a file before the line that retired it is durable; the caller holds the lake's lock. ``checkpoint`` hears
    ``deleted`` after each file.
    """
    live = {part.part for part in lake.parts}
    retired = [name for name in lake.store.names() if name in lake.state.retired and name not in live]
    deleted, waiting = [], []
    for name in retired:
        if lake.state.retired[name] > now - grace:
            waiting.append(name)
            continue
        lake.store.delete(name)
        checkpoint("deleted")
        deleted.append(name)
    kept = {remembered.file for remembered in lake.state.remembered}
    kept |= {f"part-{part.sha256[:16]}.parquet" for part in lake.parts}
    for path in sorted(lake.home.ids.glob("*.parquet")):
        if path.name not in kept:
            path.unlink()
            checkpoint("deleted")
    return Swept(deleted, waiting)
