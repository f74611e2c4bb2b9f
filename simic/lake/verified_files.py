"""Verification of files by SHA-256, cached until size, times or inode change.

Parquet does not detect flipped bits in data pages. Files are therefore hashed on first use and again when size, mtime,
ctime or inode change. Silent corruption below the file system is detected when a snapshot is made, which hashes every
part.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from simic.contracts.errors import IntegrityError
from simic.runtime.files import atomic_write, sha256_file

__all__ = ["VerifiedFile", "refresh_cache", "verify_cached"]


_CTIME = 4
"""Index of the ctime in a stamp."""


class VerifiedFile(NamedTuple):
    """A file with the digest and size with which it was committed."""

    path: Path
    sha256: str
    size_bytes: int | None
    """Size in bytes; None if only the digest is known."""


def verify_cached(files: Iterable[VerifiedFile], notes: Path, advice: str) -> None:
    """Raise IntegrityError for the first file that is missing or changed.

    Args:
        files: files with their committed digests.
        notes: cache of stamps (size, times, inode) of intact files; it may be deleted at any time.
        advice: next step, for the message.
    """
    known = _read(notes)
    stamps = {}
    for file in files:
        stamp = _stamp(file, advice)
        if known.get(str(file.path)) != stamp:
            _check(file, advice)
        stamps[str(file.path)] = stamp
    if stamps != known:
        _write(notes, stamps)


def refresh_cache(files: Iterable[VerifiedFile], notes: Path) -> None:
    """Accept a changed ctime for files that were just verified.

    Adding or removing a hard link changes the ctime and nothing else of a stamp.
    """
    known = _read(notes)
    stamps = dict(known)
    for file in files:
        before = known.get(str(file.path))
        if before is not None and file.path.exists():
            now = _stamp(file, "")
            if [*before[:_CTIME], *before[_CTIME + 1 :]] == [*now[:_CTIME], *now[_CTIME + 1 :]]:
                stamps[str(file.path)] = now
    if stamps != known:
        _write(notes, stamps)


def _stamp(file: VerifiedFile, advice: str) -> list[Any]:
    """Return values of which at least one changes with every write through the file system."""
    try:
        status = file.path.stat()
    except OSError as error:
        raise IntegrityError(f"{file.path} was committed but cannot be read ({error.strerror}); {advice}") from error
    return [file.sha256, file.size_bytes, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _check(file: VerifiedFile, advice: str) -> None:
    if file.size_bytes is not None and (size := file.path.stat().st_size) != file.size_bytes:
        raise IntegrityError(f"{file.path}: expected {file.size_bytes} bytes, found {size}; {advice}")
    if (digest := sha256_file(file.path)) != file.sha256:
        raise IntegrityError(f"{file.path}: expected SHA-256 {file.sha256}, found {digest}; {advice}")


def _read(notes: Path) -> dict[str, Any]:
    try:
        known = json.loads(notes.read_bytes())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _write(notes: Path, stamps: Mapping[str, Any]) -> None:
    """Write the cache; on failure the next verification only takes longer."""
    with suppress(OSError):
        atomic_write(notes, json.dumps(stamps).encode(), durable=False)
