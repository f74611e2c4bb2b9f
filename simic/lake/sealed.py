"""Files with a known digest: checked when they are first read, and again whenever the file system says they changed.

Parquet notices little by itself: one wrong bit in a column of numbers is another number. What changes beneath the file
system without a trace is found where every byte is read again each time: when a snapshot is made.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from simic.contracts.errors import IntegrityError

__all__ = ["SealedFile", "check_once", "renew"]


_CHANGED = 4
"""Where in a stamp the time of the last change of the inode stands."""


class SealedFile(NamedTuple):
    """A file and what it was when it was committed."""

    path: Path
    sha256: str
    size_bytes: int | None
    """None where only the digest was written down."""


def check_once(files: Iterable[SealedFile], notes: Path, advice: str) -> None:
    """Raises IntegrityError that names the first file that is missing or is not, to the byte, what was committed.

    ``notes`` is a throw-away file that remembers by size, times and inode what was found whole. ``advice`` says what to
    do about a file that is not.
    """
    known = _read(notes)
    found = {}
    for file in files:
        stamp = _stamp(file, advice)
        if known.get(str(file.path)) != stamp:
            _check(file, advice)
        found[str(file.path)] = stamp
    if found != known:
        _write(notes, found)


def renew(files: Iterable[SealedFile], notes: Path) -> None:
    """After these files were read to the last byte and found whole: a name more or less is no change of theirs.

    Giving a file another name changes the time at which the file system says it changed, and nothing else of its stamp.
    """
    known = _read(notes)
    found = dict(known)
    for file in files:
        before = known.get(str(file.path))
        if before is not None and file.path.exists():
            now = _stamp(file, "")
            if [*before[:_CHANGED], *before[_CHANGED + 1 :]] == [*now[:_CHANGED], *now[_CHANGED + 1 :]]:
                found[str(file.path)] = now
    if found != known:
        _write(notes, found)


def _stamp(file: SealedFile, advice: str) -> list[Any]:
    """Changes with every change that goes through the file system."""
    try:
        status = file.path.stat()
    except OSError as error:
        raise IntegrityError(f"{file.path} was committed but cannot be read ({error.strerror}); {advice}") from error
    return [file.sha256, file.size_bytes, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _check(file: SealedFile, advice: str) -> None:
    if file.size_bytes is not None and (size := file.path.stat().st_size) != file.size_bytes:
        raise IntegrityError(f"{file.path}: expected {file.size_bytes} bytes, found {size}; {advice}")
    with file.path.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    if digest != file.sha256:
        raise IntegrityError(f"{file.path}: expected SHA-256 {file.sha256}, found {digest}; {advice}")


def _read(notes: Path) -> dict[str, Any]:
    try:
        known = json.loads(notes.read_bytes())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _write(notes: Path, found: Mapping[str, Any]) -> None:
    """Without notes the next check takes longer, so a disk that is full does not matter here."""
    unfinished = notes.with_name(f"{notes.name}.{os.getpid()}.tmp")
    try:
        notes.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(json.dumps(found))
        unfinished.replace(notes)
    except OSError:
        unfinished.unlink(missing_ok=True)
