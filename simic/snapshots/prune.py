"""Removal of old snapshots, except pinned ones and those that registered or unjudged policies were trained on."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from simic.contracts.errors import ConfigError, IntegrityError
from simic.contracts.results.snapshots import PolicyStatus, Pruned, SnapshotPruning, SnapshotSummary
from simic.ledgers.pins import SNAPSHOTS_LOCK
from simic.runtime.files import fsync_dir
from simic.runtime.home import Home
from simic.runtime.locks import exclusive
from simic.snapshots.index import list_snapshots, policy_statuses, without_training_receipt

__all__ = ["prune"]

_PROTECTED = (PolicyStatus.CHAMPION, PolicyStatus.FORMER, PolicyStatus.ACCEPTED, PolicyStatus.UNJUDGED)
"""Status of policies whose snapshots are kept. An unjudged policy may still pass the gate."""


def prune(
    home: Home,
    keep: int,
    *,
    is_dry_run: bool,
    spare_rejected: bool = True,
    on_removed: Callable[[int], None] = lambda _: None,
) -> SnapshotPruning:
    """Remove all snapshots but the newest ``keep``, the pinned ones, and those that policies were trained on.

    Args:
        home: home of the snapshots.
        keep: how many of the newest snapshots to keep; at least 1.
        is_dry_run: remove nothing and return what would be removed.
        spare_rejected: keep snapshots on which only rejected policies were trained, too.
        on_removed: called with 1 after each removal.

    Raises:
        TransientError: while a run, a curation, a training run or an export is active.
        IntegrityError: if a manifest cannot be read, or the training receipt of a registered version is lost.
    """
    if keep < 1:
        raise ConfigError(f"--keep {keep}: at least the newest snapshot stays")
    with _exclusive_access(home, is_dry_run):
        listed = list_snapshots(home)
        if listed.unreadable:
            raise IntegrityError(
                f"nothing was removed: {', '.join(listed.unreadable)} cannot be read; see `simic snapshots verify`"
            )
        spared = (*_PROTECTED, PolicyStatus.REJECTED) if spare_rejected else _PROTECTED
        _refuse_lost_receipts(home, spared)
        newest = {summary.digest for summary in listed.snapshots[-keep:]}
        reasoned = [(summary, _reasons(summary, summary.digest in newest, spared)) for summary in listed.snapshots]
        leaving = [summary for summary, reasons in reasoned if not reasons]
        freed_bytes = _freed_bytes(Path(summary.path) for summary in leaving)
        if leaving and not is_dry_run:
            shutil.rmtree(home.unfinished_snapshots, ignore_errors=True)
            for summary in leaving:
                # Columns first, which a training makes again: nobody would look for those of a snapshot that is gone.
                _remove_columns(home, summary.digest)
                _remove(home, Path(summary.path))
                on_removed(1)
            home.unfinished_snapshots.rmdir()
    return SnapshotPruning(
        is_dry_run=is_dry_run,
        keep=keep,
        snapshots=[
            Pruned(digest=summary.digest, size_bytes=summary.size_bytes, kept_because=reasons)
            for summary, reasons in reasoned
        ],
        freed_bytes=freed_bytes,
    )


def _freed_bytes(folders: Iterable[Path]) -> int:
    """Return the bytes of files without another hard link; parts that the lake or a snapshot links stay on disk."""
    statuses = [path.stat() for folder in folders for path in folder.iterdir()]
    leaving = Counter((status.st_dev, status.st_ino) for status in statuses)
    unique = {(status.st_dev, status.st_ino): status for status in statuses}
    return sum(status.st_size for file, status in unique.items() if leaving[file] == status.st_nlink)


def _refuse_lost_receipts(home: Home, spared: tuple[PolicyStatus, ...]) -> None:
    """Raise IntegrityError for a lost training receipt: it alone names the ancestor and the ancestor's snapshot."""
    statuses = policy_statuses(home)
    lost = [
        version
        for version in without_training_receipt(home)
        if statuses.get(version.digest, PolicyStatus.UNJUDGED) in spared
    ]
    if lost:
        named = ", ".join(f"version {version.number} ({version.digest[:12]})" for version in lost)
        raise IntegrityError(
            f"nothing was removed: expected a receipt of training for every registered version, found none for {named};"
            f" put it back into {home.receipts / 'train'}"
        )


def _reasons(summary: SnapshotSummary, is_new: bool, spared: tuple[PolicyStatus, ...]) -> list[str]:
    pin = f"pinned: {summary.pinned_because}" if summary.pinned_because else "pinned"
    return [
        *(["among the newest"] if is_new else []),
        *([pin] if summary.is_pinned else []),
        *(f"policy {use.policy[:12]} ({use.standing.value})" for use in summary.used_by if use.standing in spared),
    ]


@contextmanager
def _exclusive_access(home: Home, is_dry_run: bool) -> Iterator[None]:
    """Hold the locks of every stage that makes or reads snapshots; a dry run needs none."""
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
    """Rename the folder, then delete it: a reader finds all of the snapshot or nothing."""
    home.unfinished_snapshots.mkdir(exist_ok=True)
    doomed = home.unfinished_snapshots / f"pruned-{path.name}"
    path.rename(doomed)
    fsync_dir(path.parent)
    shutil.rmtree(doomed)


def _remove_columns(home: Home, digest: str) -> None:
    """Delete the columns that training mapped from the snapshot, one folder per split."""
    for columns in (home.data / "columns").glob(f"{digest}-*"):
        shutil.rmtree(columns)
