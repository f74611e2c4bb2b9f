"""Locks between processes, released when the holder ends."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from simic.contracts.errors import BusyError, TransientError

__all__ = ["exclusive", "shared"]

POLL_S = 0.05


@contextmanager
def exclusive(path: Path, what: str, wait_s: float = 0.0) -> Iterator[None]:
    """Hold the lock file at ``path``, or raise BusyError that names ``what`` and the holder's pid.

    The lock is a ``flock``: the kernel releases it when the holder ends, in whatever way, so no stale lock remains. The
    file stays, because removing it would let two holders lock two files of one name. Two threads of one process exclude
    each other too. On a full disk the lock holds, but its holder is unnamed.

    Raises:
        BusyError: if another holds it.
        TransientError: if the file cannot be made or opened.
    """
    with _held(path, fcntl.LOCK_EX, what, wait_s) as descriptor:
        _clear(descriptor)
        with suppress(OSError):
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        try:
            yield
        finally:
            _clear(descriptor)


@contextmanager
def shared(path: Path, what: str, wait_s: float = 0.0) -> Iterator[None]:
    """Hold the lock file at ``path`` together with all who share it, or raise as ``exclusive`` does.

    Whoever holds it with ``exclusive`` excludes all of them. Those who share it are unnamed. A process that may only
    read the file can share it.
    """
    with _held(path, fcntl.LOCK_SH, what, wait_s) as descriptor:
        _clear(descriptor)  # a killed holder may have left its number, which another process can have by now
        yield


def _clear(descriptor: int) -> None:
    """Remove the number of a holder; it is only told to people, so a failure must not hide an error of the block."""
    with suppress(OSError):
        os.ftruncate(descriptor, 0)


@contextmanager
def _held(path: Path, kind: int, what: str, wait_s: float) -> Iterator[int]:
    try:
        descriptor = _opened(path, kind)
    except OSError as error:
        raise TransientError(f"cannot lock {path}: {error.strerror or error}; check space and permissions") from error
    try:
        _acquire(descriptor, kind, path, what, wait_s)
        yield descriptor
    finally:
        os.close(descriptor)


def _opened(path: Path, kind: int) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError:
        if kind == fcntl.LOCK_EX or not path.exists():
            raise
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _acquire(descriptor: int, kind: int, path: Path, what: str, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise BusyError(_busy(descriptor, path, what, wait_s)) from None
            time.sleep(POLL_S)
        else:
            return


def _busy(descriptor: int, path: Path, what: str, wait_s: float) -> str:
    pid = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
    holder = f"process {pid}" if pid.isdigit() and _is_alive(int(pid)) else "another process"
    waited = f" after waiting {wait_s:g} s" if wait_s > 0 else ""
    return f"{what} is busy{waited}: {holder} holds {path}; try again when it has ended"


def _is_alive(pid: int) -> bool:
    """Return whether a process has this number; a killed one may have left its number in the file."""
    try:
        os.kill(pid, 0)
    except OverflowError:
        return False  # longer than the number of any process
    except OSError as error:
        return error.errno == errno.EPERM
    return True
