"""Repair of the lake: find damaged parts and tombstones, and remove them from the committed state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

from simic.contracts.errors import IntegrityError
from simic.contracts.results.lake import Span
from simic.lake.lake import Lake
from simic.lake.log import Damaged, Part, TombstoneFile, TombstonesExpired, landings
from simic.lake.parts import check_part
from simic.runtime.files import sha256_file

__all__ = [
    "DamagedPart",
    "RemovalResult",
    "deliveries",
    "expire_damaged_tombstones",
    "find_damaged_parts",
    "find_damaged_tombstones",
    "remove_part",
]


class DamagedPart(NamedTuple):
    """A live part that is missing or differs from what was committed."""

    part: Part
    found: str


class RemovalResult(NamedTuple):
    """Result of removing a damaged part."""

    lake: Lake
    line: Damaged
    lost_rows: int
    """Largest number of rows that cannot be recovered, because a delivery of the part no longer exists."""
    limit_bytes: int
    """Longest line that was read whole when the requeued deliveries landed, as far as the ledger tells; 0 if it does
    not."""
    is_limit_known: bool
    """Whether the ledger tells it for every requeued delivery."""


def deliveries(lake: Lake, part: Part) -> list[str]:
    """Return every delivery with rows in a live part, sorted."""
    return sorted({source for landed in landings(lake.ledger, part.part) for source in landed.sources})


def find_damaged_parts(lake: Lake, *, is_deep: bool, on_checked: Callable[[int], None]) -> list[DamagedPart]:
    """Return live parts that are missing or of another size; ``is_deep`` compares SHA-256, too."""
    damaged = []
    for part in lake.parts:
        size_bytes = lake.store.size_bytes(part.part)
        if size_bytes is None:
            damaged.append(DamagedPart(part, "it is not there"))
        elif size_bytes != part.size_bytes:
            damaged.append(DamagedPart(part, f"expected {part.size_bytes} bytes, found {size_bytes}"))
        elif is_deep:
            try:
                check_part(lake.store, part)
            except IntegrityError:
                damaged.append(DamagedPart(part, "its SHA-256 differs"))
        on_checked(1)
    return damaged


def find_damaged_tombstones(lake: Lake, *, is_deep: bool) -> list[TombstoneFile]:
    """Return files of tombstones that are missing or, with ``is_deep``, changed."""
    return [
        tombstones
        for tombstones in lake.state.tombstones
        if not (path := lake.home.ids / tombstones.file).is_file()
        or (is_deep and sha256_file(path) != tombstones.sha256)
    ]


def remove_part(
    lake: Lake, damaged: DamagedPart, requeue: Callable[[str, Sequence[Span]], bool], *, at: datetime, code_version: str
) -> RemovalResult:
    """Requeue the deliveries of a damaged part, remove it by one ledger line, and move its file to ``damaged``.

    A kill in between leaves redundant deliveries, which are deduplicated, but never too few. The caller holds the
    lake's lock. ``requeue`` puts a delivery with the given spans back on the bus and returns whether it still exists.
    """
    landed = landings(lake.ledger, damaged.part.part)
    names = sorted({source for part in landed for source in part.sources})
    spans = {name: [part.spans[name] for part in landed if name in part.spans] for name in names}
    sources = {name: requeue(name, spans[name]) for name in names}
    comes_again = sum(part.rows for part in landed if part.sources and all(sources[name] for name in part.sources))
    line = Damaged(
        at=at,
        code_version=code_version,
        part=damaged.part.part,
        rows=damaged.part.rows,
        found=damaged.found,
        requeued=[source for source, is_there in sources.items() if is_there],
        missing=[source for source, is_there in sources.items() if not is_there],
    )
    after = lake.commit(line)
    lake.store.move_to_damaged(damaged.part.part)
    limits = [span.limit_bytes for name in line.requeued for span in spans[name]]
    limit_bytes = max((limit for limit in limits if limit is not None), default=0)
    is_limit_known = None not in limits and all(spans[name] for name in line.requeued)
    return RemovalResult(after, line, damaged.part.rows - comes_again, limit_bytes, is_limit_known)


def expire_damaged_tombstones(lake: Lake, damaged: Sequence[TombstoneFile], *, at: datetime, code_version: str) -> Lake:
    """Expire tombstones that cannot be read, by one ledger line; until then nothing can land."""
    names = [tombstones.file for tombstones in damaged]
    after = lake.commit(TombstonesExpired(at=at, code_version=code_version, files=names))
    for name in names:
        (lake.home.ids / name).unlink(missing_ok=True)
    return after
