"""Read the lines of a file in constant memory and bounded time, however long, damaged or compressed it is."""

from __future__ import annotations

import errno
import math
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, NamedTuple

import zstandard

from simic.bus.protocol import Defect, Line

__all__ = [
    "COMPRESSED_SUFFIX",
    "FORMATS",
    "NO_LIMITS",
    "PLAIN_SUFFIX",
    "FileLimits",
    "read_lines",
    "read_start",
    "read_stream",
]

PLAIN_SUFFIX = ".jsonl"
COMPRESSED_SUFFIX = ".jsonl.zst"
FORMATS = {
    b"\x1f\x8b": "gzip: decompress it with gunzip",
    b"PK\x03\x04": "a ZIP archive: unpack it",
    b"\x28\xb5\x2f\xfd": "Zstandard: name it *.jsonl.zst",
    b"\xff\xfe": "UTF-16: write it in UTF-8",
    b"\xfe\xff": "UTF-16: write it in UTF-8",
}
"""First bytes of files of which no line is JSON in UTF-8, and what they are."""

# A symbolic link could point anywhere and a pipe would block for ever; both are refused.
_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_BLOCK_BYTES = 256 * 1024
_COMPRESSED_BLOCK_BYTES = 512
"""Bytes read per step. A zstd block takes at least four bytes and unpacks to at most 128 KiB: 16 MiB per step."""
_MAX_WINDOW_BYTES = 8 * 1024 * 1024
_LEAST_LINE_BYTES = 512
"""Shorter than any report. A file with more lines than its size divided by this number is refused; blank lines and
empty zstd frames count as lines."""
_LEAST_LINES = 100_000
_EMPTY_LINES = re.compile(rb"\n+")


class FileLimits(NamedTuple):
    """Limits of one file."""

    size_bytes: int = 4096 * 1024 * 1024
    """Largest size in bytes, both on disk and decompressed."""
    time_s: float = 3600.0
    """Longest time in seconds from the first byte to the last, including the work of the consumer on its lines."""


NO_LIMITS = FileLimits(sys.maxsize, math.inf)
"""Those of a stream that is read to its end."""


class _EndError(Exception):
    """The file yields no further lines."""

    def __init__(self, defect: Defect, note: str) -> None:
        super().__init__(note)
        self.defect, self.note = defect, note


def read_lines(
    path: Path,
    max_line_bytes: int,
    limits: FileLimits = FileLimits(),  # noqa: B008 - a constant
    monotonic: Callable[[], float] = time.monotonic,
) -> Iterator[Line]:
    """Iterates over the non-blank lines of a plain (``.jsonl``) or compressed (``.jsonl.zst``) file.

    A line longer than ``max_line_bytes`` is cut and flagged TOO_LONG; its rest is skipped. If a compressed file breaks
    off, the readable part of the last line is yielded once, flagged TORN. A file that exceeds ``limits`` or changes
    while it is read ends with a line flagged GIVEN_UP. A plain file in one of ``FORMATS`` gives one line, flagged
    UNREADABLE. Raises OSError for a file that cannot be read, for example a symbolic link, a pipe or a device.
    """
    with os.fdopen(os.open(path, _OPEN_FLAGS), "rb") as file:
        budget = _Budget(limits, monotonic)
        yield from _lines(_file_blocks(file, path.name.endswith(COMPRESSED_SUFFIX), budget), max_line_bytes, budget)


def read_start(path: Path, size_bytes: int) -> bytes:
    """Return the first bytes of a compressed file; none of a plain one. Raises OSError as ``read_lines``."""
    if not path.name.endswith(COMPRESSED_SUFFIX):
        return b""
    with os.fdopen(os.open(path, _OPEN_FLAGS), "rb") as file:
        return file.read(size_bytes)


def read_stream(
    file: BinaryIO,
    max_line_bytes: int,
    limits: FileLimits = NO_LIMITS,
    *,
    is_packed: bool,
    size_bytes: int | None = None,
) -> Iterator[Line]:
    """Iterates over the same lines of a stream to its end, or to a limit; a pipe will do.

    ``size_bytes`` is its size on disk, None if it has none. Raises what ``file.read`` raises.
    """
    budget = _Budget(limits, time.monotonic)
    yield from _lines(_stream_blocks(file, is_packed, budget, size_bytes), max_line_bytes, budget)


def _file_blocks(file: BinaryIO, is_packed: bool, budget: _Budget) -> Generator[bytes, None, None]:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    budget.check_file(status.st_size)
    if not is_packed:
        _check_format(file)
    source = _plain(file, status.st_size)
    with closing(_unpacked(source) if is_packed else source) as blocks:
        yield from blocks
    if (size := os.fstat(file.fileno()).st_size) != status.st_size:
        raise _EndError(
            Defect.GIVEN_UP,
            f"expected {status.st_size} bytes as at the start of reading, found {size}: the file was put into the "
            "spool before it was whole",
        )


def _check_format(file: BinaryIO) -> None:
    """Raise _EndError for a file that starts as one of ``FORMATS`` does; leave it at its start."""
    first = file.read(max(map(len, FORMATS)))
    file.seek(0)
    for start, what in FORMATS.items():
        if first.startswith(start):
            wanted = f"expected lines of JSON in UTF-8, or Zstandard in a file named *{COMPRESSED_SUFFIX}"
            raise _EndError(Defect.UNREADABLE, f"{wanted}, found {what}")


def _stream_blocks(
    file: BinaryIO, is_packed: bool, budget: _Budget, size_bytes: int | None
) -> Generator[bytes, None, None]:
    if size_bytes is not None:
        budget.check_file(size_bytes)
    source = _plain(file, sys.maxsize)
    with closing(_unpacked(source) if is_packed else source) as blocks:
        yield from blocks


def _lines(source: Generator[bytes, None, None], max_line_bytes: int, budget: _Budget) -> Iterator[Line]:
    splitter = _Splitter(max_line_bytes)
    try:
        with closing(source) as blocks:
            for block in blocks:
                budget.spend(len(block), splitter.number)
                yield from splitter.feed(block)
    except _EndError as end:
        yield splitter.rest(end.defect, end.note)
        return
    last = splitter.rest(None)
    if last.data.strip():
        yield last


class _Budget:
    """Counts bytes, lines and seconds of one file."""

    def __init__(self, limits: FileLimits, monotonic: Callable[[], float]) -> None:
        self._limits, self._monotonic = limits, monotonic
        self._end_s = monotonic() + limits.time_s
        self._most_lines = max(_LEAST_LINES, limits.size_bytes // _LEAST_LINE_BYTES)
        self._blocks = self._size_bytes = 0

    def check_file(self, size_bytes: int) -> None:
        """Raise _EndError for a file that is too large on disk, before reading it."""
        if size_bytes > self._limits.size_bytes:
            raise _EndError(
                Defect.GIVEN_UP,
                f"expected a file of at most {self._limits.size_bytes} bytes (ingest.max_file_mb), found {size_bytes}",
            )

    def spend(self, size_bytes: int, lines: int) -> None:
        """Count a block, or an empty zstd frame, before its lines are read; raise _EndError beyond a limit."""
        self._size_bytes += size_bytes
        self._blocks += 1
        if self._size_bytes > self._limits.size_bytes:
            reason = f"expected at most {self._limits.size_bytes} bytes unpacked (ingest.max_file_mb), found more"
        elif self._blocks + lines > self._most_lines:
            reason = f"expected at most {self._most_lines} lines in a file of ingest.max_file_mb, found more"
        elif self._monotonic() > self._end_s:
            reason = f"expected to be done within {self._limits.time_s:g} s (ingest.max_file_s), found it unfinished"
        else:
            return
        raise _EndError(Defect.GIVEN_UP, reason)


class _Splitter:
    """Splits a stream of blocks at line ends; holds at most the beginning of one line."""

    def __init__(self, max_line_bytes: int) -> None:
        self._limit = max_line_bytes
        self.number = 1
        self._held = bytearray()
        self._is_too_long = False

    def feed(self, block: bytes) -> Iterator[Line]:
        start = 0
        while (end := block.find(b"\n", start)) >= 0:
            if self._held or self._is_too_long:
                self._hold(block, start, end)
                line = self.rest(None)
            elif end - start <= self._limit:
                line = Line(self.number, block[start:end], None)
            else:
                line = Line(self.number, block[start : start + self._limit], Defect.TOO_LONG)
            self.number += 1
            start = end + 1
            if line.defect is not None or line.data.strip():
                yield line
            elif run := _EMPTY_LINES.match(block, start):  # many empty lines take one step
                self.number += run.end() - start
                start = run.end()
        self._hold(block, start, len(block))

    def rest(self, defect: Defect | None, note: str = "") -> Line:
        """Return the line held so far and start an empty one."""
        line = Line(self.number, bytes(self._held), defect or (Defect.TOO_LONG if self._is_too_long else None), note)
        self._held.clear()
        self._is_too_long = False
        return line

    def _hold(self, block: bytes, start: int, end: int) -> None:
        room = self._limit - len(self._held)
        self._is_too_long = self._is_too_long or end - start > room
        self._held += block[start : min(end, start + room)]


def _plain(file: BinaryIO, size_bytes: int) -> Generator[bytes, None, None]:
    """Yield blocks of the first ``size_bytes``; bytes appended meanwhile are not read, as they might never end."""
    while size_bytes > 0 and (block := file.read(min(_BLOCK_BYTES, size_bytes))):
        size_bytes -= len(block)
        yield block


def _unpacked(source: Generator[bytes, None, None]) -> Generator[bytes, None, None]:
    """Yield blocks of at most ``_BLOCK_BYTES`` from any number of zstd frames; raise _EndError at a broken one."""
    decoder = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
    frame = decoder.decompressobj()
    is_whole = False  # an empty file is not a zstd stream, which has at least one frame
    for packed in source:
        start = 0
        while start < len(packed):
            piece = packed[start : start + _COMPRESSED_BLOCK_BYTES]
            try:
                data = frame.decompress(piece)
            except zstandard.ZstdError as error:
                raise _EndError(Defect.TORN, f"zstd cannot unpack it: {error}") from error
            is_whole = frame.eof
            start += len(piece) - len(frame.unused_data)
            for offset in range(0, len(data), _BLOCK_BYTES):
                yield data[offset : offset + _BLOCK_BYTES]
            if frame.eof:
                if not data:
                    yield data  # empty frames cost time, so they are counted
                frame = decoder.decompressobj()
    if not is_whole:
        raise _EndError(Defect.TORN, "expected the end of a zstd frame, found the end of the file")
