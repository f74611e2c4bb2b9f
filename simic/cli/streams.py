"""The three standard streams: present from the beginning, and able to detect that their reader has left.

The effect of a lost reader depends on the stream. Without a reader of its results, a verb ends with exit code 141, like
other programs in a pipe; without a reader of its remarks, it continues.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from simic.contracts.errors import ConfigError

__all__ = ["READER_LEFT", "check_words", "own_streams"]

READER_LEFT = 141
"""Exit code 128 + SIGPIPE, which a shell shows for a program in a pipe that the signal ended."""


class _Stream(io.TextIOWrapper):
    """Standard output or error that calls ``on_left`` when its reader has left; unencodable text is escaped."""

    def __init__(self, stream: io.TextIOWrapper, on_left: Callable[[], None]) -> None:
        super().__init__(stream.buffer, stream.encoding, "backslashreplace", line_buffering=stream.line_buffering)
        self._on_left = on_left

    def write(self, text: str, /) -> int:
        """Write like any stream."""
        try:
            return super().write(text)
        except BrokenPipeError:
            self._leave()
            return len(text)

    def flush(self) -> None:
        """Flush like any stream."""
        try:
            super().flush()
        except BrokenPipeError:
            self._leave()

    def _leave(self) -> None:
        """Redirect buffered output, because the interpreter would otherwise report an error when it exits."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        self._on_left()


@contextmanager
def own_streams() -> Iterator[None]:
    """Prepare the standard streams; raise ConfigError, before anything is done, if standard output is closed.

    The next opened file would get the number of a closed stream, and would receive the printed text.
    """
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115, PTH123 - open as long as the process
    if sys.stderr is None:
        # Both names are replaced; a stream that nobody references is closed, together with the buffer that it shares.
        sys.__stderr__ = sys.stderr = open(os.devnull, "w")  # type: ignore[misc] # noqa: SIM115, PTH123
    if sys.stdout is None:
        raise ConfigError("standard output is closed, so nothing was done; redirect it to /dev/null")
    # A second command in one process keeps the streams of the first: a wrapper that is dropped closes its buffer.
    if isinstance(sys.stdout, io.TextIOWrapper) and not isinstance(sys.stdout, _Stream):
        sys.stdout = _Stream(sys.stdout, _end)
    if isinstance(sys.stderr, io.TextIOWrapper) and not isinstance(sys.stderr, _Stream):
        sys.stderr = _Stream(sys.stderr, lambda: None)
    try:
        yield
    finally:
        sys.stdout.flush()


def check_words(words: Sequence[str]) -> None:
    """Raise ConfigError for an argument that is not valid text: files, receipts and DuckDB accept UTF-8 only."""
    for number, word in enumerate(words, 1):
        try:
            word.encode()
        except UnicodeEncodeError as error:
            encoding = sys.getfilesystemencoding()
            hint = "" if encoding == "utf-8" else f"; this locale's is {encoding}, so set LC_ALL=C.UTF-8"
            raise ConfigError(f"argument {number} is not valid UTF-8 at character {error.start + 1}{hint}") from None


def _end() -> NoReturn:
    raise SystemExit(READER_LEFT)
