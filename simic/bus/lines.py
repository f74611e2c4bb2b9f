"""Lines of a file in constant memory, however long a line, however torn or packed the file."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

import zstandard

from simic.bus.protocol import Defect, Line

__all__ = ["COMPRESSED_SUFFIX", "PLAIN_SUFFIX", "read_lines"]

PLAIN_SUFFIX = ".jsonl"
COMPRESSED_SUFFIX = ".jsonl.zst"

_BLOCK_BYTES = 256 * 1024
_COMPRESSED_BLOCK_BYTES = 512
"""A zstd block takes at least four bytes and unpacks to at most 128 KiB, so one step unpacks at most 16 MiB."""
_MAX_WINDOW_BYTES = 8 * 1024 * 1024


class _TornError(Exception):
    """The compressed stream ends or breaks here."""


def read_lines(path: Path, max_line_bytes: int) -> Iterator[Line]:
    """Every line of a plain (``.jsonl``) or compressed (``.jsonl.zst``) file but blank ones.

    A line longer than ``max_line_bytes`` comes out cut and flagged TOO_LONG, and its rest is skipped. Where a
    compressed file breaks off, what could be read of the last line comes out once, flagged TORN.
    """
    unpack = _unpacked if path.name.endswith(COMPRESSED_SUFFIX) else _plain
    splitter = _Splitter(max_line_bytes)
    # A symbolic link could point anywhere and a pipe would block for ever; both are refused by the open flags.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file, closing(unpack(file)) as blocks:
        try:
            for block in blocks:
                yield from splitter.feed(block)
        except _TornError:
            yield splitter.rest(Defect.TORN)
            return
    last = splitter.rest(None)
    if last.data.strip():
        yield last


class _Splitter:
    """Cuts a stream of blocks at line ends and holds at most one line's beginning."""

    def __init__(self, max_line_bytes: int) -> None:
        self._limit = max_line_bytes
        self._number = 1
        self._held = bytearray()
        self._is_too_long = False

    def feed(self, block: bytes) -> Iterator[Line]:
        start = 0
        while (end := block.find(b"\n", start)) >= 0:
            if self._held or self._is_too_long:
                self._hold(block, start, end)
                line = self.rest(None)
            elif end - start <= self._limit:
                line = Line(self._number, block[start:end], None)
            else:
                line = Line(self._number, block[start : start + self._limit], Defect.TOO_LONG)
            if line.defect is not None or line.data.strip():
                yield line
            self._number += 1
            start = end + 1
        self._hold(block, start, len(block))

    def rest(self, defect: Defect | None) -> Line:
        """The line held so far; the next one starts empty."""
        line = Line(self._number, bytes(self._held), Defect.TOO_LONG if self._is_too_long else defect)
        self._held.clear()
        self._is_too_long = False
        return line

    def _hold(self, block: bytes, start: int, end: int) -> None:
        room = self._limit - len(self._held)
        self._is_too_long = self._is_too_long or end - start > room
        self._held += block[start : min(end, start + room)]


def _plain(file: BinaryIO) -> Generator[bytes, None, None]:
    while block := file.read(_BLOCK_BYTES):
        yield block


def _unpacked(file: BinaryIO) -> Generator[bytes, None, None]:
    """Blocks of at most ``_BLOCK_BYTES`` from any number of zstd frames; raises _TornError at a broken one."""
    decoder = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
    frame = decoder.decompressobj()
    is_whole = False  # not even an empty file is: there is no zstd stream without a frame
    while packed := file.read(_BLOCK_BYTES):
        start = 0
        while start < len(packed):
            piece = packed[start : start + _COMPRESSED_BLOCK_BYTES]
            try:
                data = frame.decompress(piece)
            except zstandard.ZstdError as error:
                raise _TornError from error
            is_whole = frame.eof
            start += len(piece) - len(frame.unused_data)
            for offset in range(0, len(data), _BLOCK_BYTES):
                yield data[offset : offset + _BLOCK_BYTES]
            if frame.eof:
                frame = decoder.decompressobj()
    if not is_whole:
        raise _TornError
