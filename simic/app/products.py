"""What the doctor says of what was made of experience: snapshots, the champion, the catalogue."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from simic.app.checks import damaged, healthy, repairable, repaired
from simic.contracts.errors import IntegrityError, SimicError
from simic.contracts.lake import Check, Health
from simic.contracts.receipts import SnapshotManifest
from simic.runtime import aside

if TYPE_CHECKING:
    from simic.runtime.settings import Home

__all__ = ["examine_catalogue", "examine_promotions", "examine_snapshots"]


def examine_snapshots(home: Home, *, is_deep: bool, is_repair: bool) -> Iterator[Check]:
    """Every file as sealed; a repair moves damaged snapshots aside."""
    broken, count = [], 0
    for path in sorted(home.snapshots.glob("*/")):
        count += 1
        try:
            _check_snapshot(path, is_deep=is_deep)
        except (SimicError, OSError, ValueError) as error:
            broken.append((path, str(error)))
    if not broken:
        judged = "size and SHA-256" if is_deep else "size; --deep takes digests"
        yield healthy("snapshots", f"{count} as sealed ({judged})")
    for path, problem in broken:
        if is_repair:
            where = aside.set_aside(path)
            yield repaired(f"snapshot {path.name}", problem, f"moved to {where}; `simic curate` makes it again")
        else:
            remedy = "move it aside; `simic curate` makes it again from the rows still in the lake"
            yield damaged(f"snapshot {path.name}", problem, remedy)


def _check_snapshot(path: Path, *, is_deep: bool) -> None:
    if is_deep:
        from simic.curation.snapshot import verify_snapshot

        verify_snapshot(path)
        return
    manifest = SnapshotManifest.model_validate_json((path / "manifest.json").read_bytes())
    for file in (*manifest.files, *manifest.sources):
        found = (path / file.name).stat().st_size if (path / file.name).is_file() else None
        if found != file.size_bytes:
            raise IntegrityError(f"{file.name}: expected {file.size_bytes} bytes, found {found or 'no file'}")


def examine_promotions(home: Home, champion: Callable[[], int | None], *, is_deep: bool) -> Iterator[Check]:
    """No promotion is open; deep, the registry's champion is the journal's."""
    from simic.registry.journal import Journal, Phase

    try:
        entries = Journal(home.ledger / "promotions.jsonl").entries()
    except (IntegrityError, ValueError):
        return  # a ledger like any other, reported as such
    if not entries:
        return
    if entries[-1].phase is Phase.OPEN:
        found = f"{entries[-1].operation.value} to version {entries[-1].target} was begun and not ended"
        yield repairable("champion", found, "the next `simic promote` or `simic rollback` ends it")
        return
    if not is_deep:
        yield healthy("champion", "no promotion is open; --deep asks the registry")
        return
    done = [entry for entry in entries if entry.phase is Phase.DONE]
    expected, found_number = (done[-1].target if done else None), champion()
    if expected == found_number:
        yield healthy("champion", f"version {found_number}, as journalled")
    else:
        found = f"the registry says version {found_number}, the journal {expected}"
        yield damaged("champion", found, "was the alias moved by hand? `simic promote` or `simic rollback` decides")


def examine_catalogue(home: Home, checks: Sequence[Check], *, is_repair: bool) -> Iterator[Check]:
    """A repair rebuilds it, unless ``checks`` found damage that it would show."""
    from simic.lake.catalogue import build_catalogue

    if any(check.health is Health.DAMAGED for check in checks):
        yield healthy("catalogue", "not rebuilt: first the damage above")
        return
    if not is_repair:
        yield healthy("catalogue", "rebuilt before every query")
        return
    build_catalogue(home)
    yield healthy("catalogue", "rebuilt")
