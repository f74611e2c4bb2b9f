"""Append-only files of JSON lines whose line ends are the commit points.

A line counts once its line end is on disk. What a crash leaves after the last line end was never committed:
readers ignore it and the next append cuts it off. Anything unreadable before that is damage, not a crash.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simic.contracts.errors import ContractViolation, IntegrityError, TransientError
from simic.runtime.durable import sync_folder

__all__ = ["Ledger"]

_TAIL_BLOCK_BYTES = 64 * 1024


class Ledger:
    """One ledger file; its single writer holds a lock, readers need none."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: Mapping[str, Any]) -> None:
        """Durable when this returns; a torn tail is cut off first.

        Raises TransientError where it cannot be written, for want of space say; the record then may or may not count.
        """
        try:
            line = json.dumps(record, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode() + b"\n"
        except (TypeError, ValueError) as error:
            raise ContractViolation(f"{self.path.name}: a record must be plain JSON: {error}") from error
        try:
            self._append(line)
        except OSError as error:
            raise TransientError(
                f"cannot append to {self.path}: {error.strerror or error}; check space and permissions"
            ) from error

    def _append(self, line: bytes) -> None:
        is_new = not self.path.exists()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            _cut_torn_tail(descriptor)
            with os.fdopen(descriptor, "ab", buffering=0, closefd=False) as file:
                written = 0
                while written < len(line):
                    written += file.write(line[written:])
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            sync_folder(self.path.parent)

    def read(self) -> list[dict[str, Any]]:
        """All committed records, oldest first; none if there is no file yet.

        Raises IntegrityError for a damaged line, naming its number.
        """
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return []
        committed = content[: content.rfind(b"\n") + 1]
        return [self._parse(number, line) for number, line in enumerate(committed.split(b"\n")[:-1], 1)]

    def torn_bytes(self) -> int:
        """Length of what a crash left after the last line end; readers ignore it."""
        try:
            with self.path.open("rb") as file:
                return os.fstat(file.fileno()).st_size - _committed_end(file.fileno())
        except FileNotFoundError:
            return 0

    def cut_torn_tail(self) -> None:
        """What the next append would do first; for its writer, who holds the lock."""
        descriptor = os.open(self.path, os.O_RDWR)
        try:
            _cut_torn_tail(descriptor)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _parse(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            record = json.loads(line)
        except ValueError as error:
            raise IntegrityError(
                f"{self.path}, line {number}: not JSON; this is damage, not a crash: restore it from a backup"
            ) from error
        if not isinstance(record, dict):
            raise IntegrityError(f"{self.path}, line {number}: expected an object, found {type(record).__name__}")
        return record


def _cut_torn_tail(descriptor: int) -> None:
    """Truncates to the last line end."""
    end = _committed_end(descriptor)
    if end < os.fstat(descriptor).st_size:
        os.ftruncate(descriptor, end)


def _committed_end(descriptor: int) -> int:
    """Where the last line end is, or 0."""
    end = os.fstat(descriptor).st_size
    while end > 0:
        start = max(0, end - _TAIL_BLOCK_BYTES)
        found = os.pread(descriptor, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
