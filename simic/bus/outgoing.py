"""Entries on their way to a stream: all of them first, then one round trip per chunk."""

from __future__ import annotations

from collections.abc import Sequence
from tempfile import SpooledTemporaryFile
from types import TracebackType
from typing import Self

from simic.bus.connection import RedisServer
from simic.bus.entries import pack_command

__all__ = ["Outgoing"]

_CHUNK_ENTRIES = 500
_CHUNK_BYTES = 1 << 20
_MEMORY_BYTES = 8 << 20
"""What is more waits in a temporary file."""


class Outgoing:
    """Collects packed commands, in memory or beyond that on disk, until all of them are known."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._file = SpooledTemporaryFile(max_size=_MEMORY_BYTES)  # noqa: SIM115 - closed by __exit__
        self._chunks: list[int] = []
        """Bytes of each chunk."""
        self._commands: list[int] = []
        """Commands of each chunk."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, fields: Sequence[bytes]) -> None:
        """One entry: names and values in turn."""
        packed = pack_command([b"XADD", self._topic.encode(), b"*", *fields])
        self._file.write(packed)
        if not self._chunks or self._commands[-1] >= _CHUNK_ENTRIES or self._chunks[-1] >= _CHUNK_BYTES:
            self._chunks.append(0)
            self._commands.append(0)
        self._chunks[-1] += len(packed)
        self._commands[-1] += 1

    def send(self, server: RedisServer) -> None:
        """Every entry in order; a chunk whose answers did not come is sent again, so entries may be there twice."""
        self._file.seek(0)
        for size, commands in zip(self._chunks, self._commands, strict=True):
            server.send(f"add {commands} entries to {self._topic}", self._file.read(size), commands)
