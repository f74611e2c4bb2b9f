"""Files that only their owner may read: written atomically, refused if others can read them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from simic.contracts.errors import ConfigError
from simic.runtime.files import atomic_write, ignore_in_git

__all__ = ["private_directory", "read_private", "write_private"]

_FILE_MODE, _DIRECTORY_MODE = 0o600, 0o700
_OTHERS = 0o077


def private_directory(path: Path) -> None:
    """Create a directory, or narrow an existing one, so that only its owner can enter it and Git ignores it."""
    path.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
    if path.stat().st_mode & _OTHERS:
        path.chmod(_DIRECTORY_MODE)
    ignore_in_git(path)


def write_private(path: Path, content: bytes) -> None:
    """Replace a file atomically by one of mode 0600."""
    atomic_write(path, content, mode=_FILE_MODE)


def read_private(path: Path, what: str, limit_bytes: int) -> bytes:
    """Read at most ``limit_bytes`` bytes of a file that is for its owner only.

    Raises:
        ConfigError: if the file cannot be read, is a link or no plain file, belongs to another user, or can be
            read or written by others.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a named pipe would wait for a writer
    except OSError as error:
        raise ConfigError(f"cannot read {what} {path}: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_mode & _OTHERS or status.st_uid != os.geteuid():
            raise ConfigError(
                f"{what} {path} must be a plain file of yours that nobody else may read, found mode "
                f"{stat.S_IMODE(status.st_mode):04o} of user {status.st_uid}; others may know it: remove it"
            )
        return file.read(limit_bytes)
