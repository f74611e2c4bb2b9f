"""Old snapshots leave: never a pinned one, never one from which a policy learned, registered or not yet judged."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from simic.contracts.errors import ConfigError, IntegrityError
from simic.contracts.snapshots import Pruned, SnapshotPruning, SnapshotSummary, Standing
from simic.curation.holdings import list_snapshots, standings, unreceipted
from simic.lake.pins import SNAPSHOTS_LOCK
from simic.runtime.durable import sync_folder
from simic.runtime.locks import exclusive
from simic.runtime.settings import Home

__all__ = ["prune"]

_SPARED = (Standing.CHAMPION, Standing.FORMER, Standing.ACCEPTED, Standing.UNJUDGED)
"""An unjudged policy may be waiting for the gate, which can still make it champion."""


def prune(
    home: Home,
    keep: int,
    *,
    is_dry_run: bool,
    spare_rejected: bool = True,
    on_removed: Callable[[int], None] = lambda _: None,
) -> SnapshotPruning:
    """Removes all but the newest ``keep`` snapshots, the pinned ones, and those behind a policy.

    A policy counts with every training it went on from. Without ``spare_rejected`` a snapshot may go although policies
    that the gate rejected learned from it. A dry run removes nothing. Raises TransientError while a run, a curation, a
    training or an export is at work, and IntegrityError where a manifest cannot be read or the receipt of a registered
    version's training is lost: what is damaged is not judged.
    """
    if keep < 1:
        raise ConfigError(f"--keep {keep}: at least the newest snapshot stays")
    with _nobody_reads(home, is_dry_run):
        listed = list_snapshots(home)
        if listed.unreadable:
            raise IntegrityError(
                f"nothing was removed: {', '.join(listed.unreadable)} cannot be read; see `simic snapshots verify`"
            )
        spared = (*_SPARED, Standing.REJECTED) if spare_rejected else _SPARED
        _refuse_lost_receipts(home, spared)
        newest = {summary.digest for summary in listed.snapshots[-keep:]}
        judged = [(summary, _reasons(summary, summary.digest in newest, spared)) for summary in listed.snapshots]
        leaving = [summary for summary, reasons in judged if not reasons]
        freed_bytes = _freed_bytes(Path(summary.path) for summary in leaving)
        if not is_dry_run:
            for summary in leaving:
                _remove(home, Path(summary.path))
                _remove_columns(home, summary.digest)
                on_removed(1)
    return SnapshotPruning(
        is_dry_run=is_dry_run,
        keep=keep,
        snapshots=[
            Pruned(digest=summary.digest, size_bytes=summary.size_bytes, kept_because=reasons)
            for summary, reasons in judged
        ],
        freed_bytes=freed_bytes,
    )


def _freed_bytes(folders: Iterable[Path]) -> int:
    """Of files that have no other name: a part that the lake or another snapshot holds stays on the disk."""
    found = [path.stat() for folder in folders for path in folder.iterdir()]
    leaving = Counter((status.st_dev, status.st_ino) for status in found)
    unique = {(status.st_dev, status.st_ino): status for status in found}
    return sum(status.st_size for file, status in unique.items() if leaving[file] == status.st_nlink)


def _refuse_lost_receipts(home: Home, spared: tuple[Standing, ...]) -> None:
    """Without its receipt nobody knows from which policy a version went on, and so not what that one learned from."""
    standing = standings(home)
    lost = [version for version in unreceipted(home) if standing.get(version.digest, Standing.UNJUDGED) in spared]
    if lost:
        named = ", ".join(f"version {version.number} ({version.digest[:12]})" for version in lost)
        raise IntegrityError(
            f"nothing was removed: expected a receipt of training for every registered version, found none for {named};"
            f" put it back into {home.receipts / 'train'}"
        )


def _reasons(summary: SnapshotSummary, is_new: bool, spared: tuple[Standing, ...]) -> list[str]:
    pin = f"pinned: {summary.pinned_because}" if summary.pinned_because else "pinned"
    return [
        *(["among the newest"] if is_new else []),
        *([pin] if summary.is_pinned else []),
        *(f"policy {use.policy[:12]} ({use.standing.value})" for use in summary.used_by if use.standing in spared),
    ]


@contextmanager
def _nobody_reads(home: Home, is_dry_run: bool) -> Iterator[None]:
    """A dry run only looks. Otherwise no stage that makes or reads snapshots may be at work."""
    with ExitStack() as stack:
        if not is_dry_run:
            for name, what in (
                ("run", "a run of the flow"),
                ("curate", "curate"),
                ("train", "training"),
                ("export", "exporting a snapshot"),
                (SNAPSHOTS_LOCK, "pinning snapshots"),
            ):
                stack.enter_context(exclusive(home.locks / name, what))
        yield


def _remove(home: Home, path: Path) -> None:
    """Out of sight in one step, then gone: a reader finds all of a snapshot or none of it."""
    home.tmp.mkdir(parents=True, exist_ok=True)
    doomed = home.tmp / f"pruned-{path.name}"
    shutil.rmtree(doomed, ignore_errors=True)
    path.rename(doomed)
    sync_folder(path.parent)
    shutil.rmtree(doomed)


def _remove_columns(home: Home, digest: str) -> None:
    """What training mapped of it, one folder per split: made again from the snapshot, and no use without it."""
    for columns in (home.data / "columns").glob(f"{digest}-*"):
        shutil.rmtree(columns)
