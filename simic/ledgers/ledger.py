"""Append-only files of JSON lines; the line end commits a line.

A line is committed once its line end is on disk. Bytes that a crash leaves after the last line end are not committed:
readers ignore them and the next append cuts them off. An unreadable line before that is damage.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simic.contracts.errors import ContractError, IntegrityError
from simic.runtime.files import fsync_dir, os_error_as_transient

__all__ = ["Ledger"]

_TAIL_BLOCK_BYTES = 64 * 1024


class Ledger:
    """A ledger file. Its single writer holds a lock; readers need none."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: Mapping[str, Any]) -> None:
        """Append a record durably, after cutting off a torn tail.

        Raises:
            ContractError: if the record is not plain JSON.
            TransientError: if the file cannot be written. The record may be committed or not.
        """
        try:
            line = json.dumps(record, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode() + b"\n"
        except (TypeError, ValueError) as error:
            raise ContractError(f"{self.path.name}: a record must be plain JSON: {error}") from error
        with os_error_as_transient(f"append to {self.path}"):
            self._append(line)

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
            fsync_dir(self.path.parent)

    def read(self) -> list[dict[str, Any]]:
        """Return all committed records, oldest first; an empty list if there is no file.

        Raises:
            IntegrityError: for a damaged line, with its number.
        """
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return []
        committed = content[: content.rfind(b"\n") + 1]
        return [self._parse(number, line) for number, line in enumerate(committed.split(b"\n")[:-1], 1)]

    def torn_bytes(self) -> int:
        """Return the number of bytes after the last line end, which readers ignore."""
        try:
            with self.path.open("rb") as file:
                return os.fstat(file.fileno()).st_size - _committed_end(file.fileno())
        except FileNotFoundError:
            return 0

    def cut_torn_tail(self) -> None:
        """Cut off the bytes after the last line end, as the next append would; the caller holds the writer's lock."""
        descriptor = os.open(self.path, os.O_RDWR)
        try:
            _cut_torn_tail(descriptor)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _parse(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise IntegrityError(
                f"{self.path}, line {number}: not JSON; this is damage, not a crash: restore it from a backup"
            ) from error
        if not isinstance(record, dict):
            raise IntegrityError(f"{self.path}, line {number}: expected an object, found {type(record).__name__}")
        return record


def _cut_torn_tail(descriptor: int) -> None:
    """Truncate the file to its last line end."""
    end = _committed_end(descriptor)
    if end < os.fstat(descriptor).st_size:
        os.ftruncate(descriptor, end)


def _committed_end(descriptor: int) -> int:
    """Return the offset behind the last line end, or 0."""
    end = os.fstat(descriptor).st_size
    while end > 0:
        start = max(0, end - _TAIL_BLOCK_BYTES)
        line_end = os.pread(descriptor, end - start, start).rfind(b"\n")
        if line_end >= 0:
            return start + line_end + 1
        end = start
    return 0
