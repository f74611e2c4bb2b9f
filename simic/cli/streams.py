"""The three standard streams: there from the beginning, and told when nobody reads them any more.

What a reader that leaves means depends on the stream. Results are why a verb runs, so it ends as other programs of a
pipe do, with exit code 141; remarks are not, so it goes on without them.
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
"""128 and SIGPIPE, as a shell shows a program of a pipe that the signal ended."""


class _Stream(io.TextIOWrapper):
    """Standard output or error that calls ``on_left`` once its reader has left; text that it cannot say is escaped."""

    def __init__(self, stream: io.TextIOWrapper, on_left: Callable[[], None]) -> None:
        super().__init__(stream.buffer, stream.encoding, "backslashreplace", line_buffering=stream.line_buffering)
        self._on_left = on_left

    def write(self, text: str, /) -> int:
        """As any stream does."""
        try:
            return super().write(text)
        except BrokenPipeError:
            self._leave()
            return len(text)

    def flush(self) -> None:
        """As any stream does."""
        try:
            super().flush()
        except BrokenPipeError:
            self._leave()

    def _leave(self) -> None:
        """What is still buffered has to go somewhere, or the interpreter complains of it at its end."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        self._on_left()


@contextmanager
def own_streams() -> Iterator[None]:
    """Standard streams that can be written to; raises ConfigError if standard output is closed, and nothing was done.

    A closed one would be the number of the next file that is opened, and that file would get what is printed.
    """
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115, PTH123 - open as long as the process
    if sys.stderr is None:
        # Under both names, as if it had been there: what nobody holds is closed, and the buffer that it shares too.
        sys.__stderr__ = sys.stderr = open(os.devnull, "w")  # type: ignore[misc] # noqa: SIM115, PTH123
    if sys.stdout is None:
        raise ConfigError("standard output is closed, so nothing was done; redirect it to /dev/null")
    # A second command of one process keeps the streams of the first: a wrapper that is dropped closes its buffer.
    if isinstance(sys.stdout, io.TextIOWrapper) and not isinstance(sys.stdout, _Stream):
        sys.stdout = _Stream(sys.stdout, _end)
    if isinstance(sys.stderr, io.TextIOWrapper) and not isinstance(sys.stderr, _Stream):
        sys.stderr = _Stream(sys.stderr, lambda: None)
    try:
        yield
    finally:
        sys.stdout.flush()


def check_words(words: Sequence[str]) -> None:
    """ConfigError for bytes of the command line that are no text: files, receipts and DuckDB take UTF-8 only."""
    for number, word in enumerate(words, 1):
        try:
            word.encode()
        except UnicodeEncodeError as error:
            encoding = sys.getfilesystemencoding()
            hint = "" if encoding == "utf-8" else f"; this locale's is {encoding}, so set LC_ALL=C.UTF-8"
            raise ConfigError(f"argument {number} is not valid UTF-8 at character {error.start + 1}{hint}") from None


def _end() -> NoReturn:
    raise SystemExit(READER_LEFT)
