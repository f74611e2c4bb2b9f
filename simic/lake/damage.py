"""What is wrong with the files of a lake, and how a damaged part leaves it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

from simic.contracts.errors import IntegrityError
from simic.lake.lake import Lake
from simic.lake.operations import Damaged, Forgotten, Part, Remembered, landings
from simic.lake.parts import check_part, file_digest

__all__ = ["BrokenPart", "TakenOut", "broken_ids", "broken_parts", "deliveries", "forget_broken", "take_out"]


class BrokenPart(NamedTuple):
    """A live part that is not what was committed."""

    part: Part
    found: str


class TakenOut(NamedTuple):
    """What became of a broken part."""

    lake: Lake
    line: Damaged
    lost_rows: int
    """At most so many cannot be had again: those that landed together with rows of a delivery no longer at hand."""


def deliveries(lake: Lake, part: Part) -> list[str]:
    """Every delivery that a live part holds rows of, sorted."""
    return sorted({source for landed in landings(lake.ledger, part.part) for source in landed.sources})


def broken_parts(lake: Lake, *, is_deep: bool, on_checked: Callable[[int], None]) -> list[BrokenPart]:
    """Live parts that are missing or of another size; ``is_deep`` reads every byte and compares digests too."""
    broken = []
    for part in lake.parts:
        found = lake.store.size_bytes(part.part)
        if found is None:
            broken.append(BrokenPart(part, "it is not there"))
        elif found != part.size_bytes:
            broken.append(BrokenPart(part, f"expected {part.size_bytes} bytes, found {found}"))
        elif is_deep:
            try:
                check_part(lake.store, part)
            except IntegrityError:
                broken.append(BrokenPart(part, "its SHA-256 is another"))
        on_checked(1)
    return broken


def broken_ids(lake: Lake, *, is_deep: bool) -> list[Remembered]:
    """Files of ids of dropped reports that are missing or, with ``is_deep``, changed."""
    return [
        remembered
        for remembered in lake.state.remembered
        if not (path := lake.home.ids / remembered.file).is_file()
        or (is_deep and file_digest(path) != remembered.sha256)
    ]


def take_out(
    lake: Lake, broken: BrokenPart, requeue: Callable[[str], bool], *, at: datetime, code_version: str
) -> TakenOut:
    """Asks for a broken part's deliveries again, takes it out by one line, and puts its file aside.

    In this order, so that a kill between leaves deliveries too many, which are recognised, and never too few. The
    caller holds the lake's lock. ``requeue`` says whether a delivery is still at hand.
    """
    landed = landings(lake.ledger, broken.part.part)
    sources = {source: requeue(source) for source in sorted({source for part in landed for source in part.sources})}
    comes_again = sum(part.rows for part in landed if part.sources and all(sources[name] for name in part.sources))
    line = Damaged(
        at=at,
        code_version=code_version,
        part=broken.part.part,
        rows=broken.part.rows,
        found=broken.found,
        requeued=[source for source, is_there in sources.items() if is_there],
        missing=[source for source, is_there in sources.items() if not is_there],
    )
    after = lake.commit(line)
    lake.store.set_aside(broken.part.part)
    return TakenOut(after, line, broken.part.rows - comes_again)


def forget_broken(lake: Lake, broken: Sequence[Remembered], *, at: datetime, code_version: str) -> Lake:
    """Ids that cannot be read are known no longer; without this line nothing could land."""
    names = [remembered.file for remembered in broken]
    after = lake.commit(Forgotten(at=at, code_version=code_version, files=names))
    for name in names:
        (lake.home.ids / name).unlink(missing_ok=True)
    return after
