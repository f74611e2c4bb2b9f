"""Disks that fill up for real: the operating system says no, not a mock.

``tmpfs``: a small disk of one's own, where all of the disk is full (ENOSPC). Only the victims see it: it is mounted in
a mount namespace of their server, and vanishes with it.

``limit``: a limit on the size of any file that a victim writes (EFBIG, after a short write). Needs no rights at all.
"""

from __future__ import annotations

import os
import resource
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path

__all__ = ["LIMIT", "TMPFS", "fill", "free", "on_small_disk", "read_only", "ways"]

TMPFS, LIMIT = "tmpfs", "limit"
FILLER = "filler"
BLOCK = 4096
_MOUNT = 'mount -t tmpfs -o size="$1" none "$2" && shift 2 && exec "$@"'
_READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"'
_PREFIXES = (("unshare", "--map-root-user", "--mount"), ("unshare", "--mount"))


def ways() -> tuple[str, ...]:
    """What this machine allows; ``limit`` always works."""
    return (TMPFS, LIMIT) if _prefix() else (LIMIT,)


def on_small_disk(command: list[str], place: Path, size: str = "8m") -> list[str]:
    """The command, but for it and its children the directory ``place`` is a disk of that size."""
    return [*_prefix(), "sh", "-c", _MOUNT, "sh", size, str(place), *command]


def fill(way: str, place: Path, room_bytes: int = 0) -> None:
    """From now on nearly nothing can be written: ``room_bytes`` altogether (in blocks), or into any one file."""
    if way == LIMIT:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, resource.RLIM_INFINITY))
        return
    with suppress(OSError), (place / FILLER).open("ab", buffering=0) as file:
        while file.write(bytes(64 * BLOCK)):
            pass
    size = (place / FILLER).stat().st_size // BLOCK * BLOCK
    os.truncate(place / FILLER, size - -(-room_bytes // BLOCK) * BLOCK)


def free(place: Path) -> None:
    """Somebody made space."""
    (place / FILLER).unlink(missing_ok=True)


@cache
def _prefix() -> tuple[str, ...]:
    """How to get a mount namespace here, as root or as anybody; empty if nobody may."""
    for prefix in _PREFIXES:
        with suppress(OSError):
            done = subprocess.run(
                [*prefix, "sh", "-c", _MOUNT, "sh", "64k", "/tmp", "true"],  # noqa: S108  nobody else sees it
                capture_output=True,
                check=False,
                timeout=20,
            )
            if done.returncode == 0:
                return prefix
    return ()


def read_only(command: list[str], place: Path) -> list[str]:
    """The command, but nobody, root included, can write to ``place``: a mount, or a user without rights.

    Without the directory the mount would fail, and a test that awaits a failure would take that one for it.
    """
    if not place.is_dir():
        raise NotADirectoryError(place)
    if _prefix():
        return [*_prefix(), "sh", "-c", _READ_ONLY, "sh", str(place), *command]
    return command if os.access(place, os.W_OK) is False else ["setpriv", "--reuid=65534", "--clear-groups", *command]
