"""How far a long piece of work has come, on stderr, for a person."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichBars

__all__ = ["Advance", "NoProgress", "Progress", "RichProgress", "Titled"]

Advance = Callable[[int], None]
"""Report that so many more units are done."""

LINE_EVERY_S = 10.0


class Progress(Protocol):
    """Announces work; changes nothing about it."""

    def task(self, name: str, total: int) -> AbstractContextManager[Advance]:
        """Work of ``total`` units begins; it ends with the context."""


class NoProgress:
    """Says nothing."""

    @contextmanager
    def task(self, name: str, total: int) -> Iterator[Advance]:  # noqa: ARG002 - the protocol's names
        """Advance goes nowhere."""
        yield lambda _count: None


class Titled:
    """Another's progress, whose names begin with a title while there is one."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._title = ""

    @contextmanager
    def titled(self, title: str) -> Iterator[None]:
        """Work that begins within is announced as ``<title>: <name>``."""
        self._title = f"{title}: "
        try:
            yield
        finally:
            self._title = ""

    def task(self, name: str, total: int) -> AbstractContextManager[Advance]:
        """As the other shows it."""
        return self._progress.task(self._title + name, total)


class RichProgress:
    """Live bars on a terminal; elsewhere a plain line at the start, now and then, and at the end."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = Console(file=sys.stderr) if console is None else console
        self._bars: RichBars | None = None
        self._open_tasks = 0

    def task(self, name: str, total: int) -> AbstractContextManager[Advance]:
        """A bar or lines, by what stderr is."""
        return self._bar(name, total) if self._console.is_terminal else self._lines(name, total)

    @contextmanager
    def _bar(self, name: str, total: int) -> Iterator[Advance]:
        if self._bars is None:
            self._bars = RichBars(
                TextColumn("{task.description:<10}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=self._console,
            )
        bars = self._bars
        if self._open_tasks == 0:
            bars.start()
        self._open_tasks += 1
        bar = bars.add_task(name, total=total)
        try:
            yield lambda count: bars.advance(bar, count)
        finally:
            self._open_tasks -= 1
            if self._open_tasks == 0:
                bars.stop()
                self._bars = None  # finished bars stay on the screen; the next task begins below them

    @contextmanager
    def _lines(self, name: str, total: int) -> Iterator[Advance]:
        started = time.monotonic()
        done, said = 0, started

        def say(note: str) -> None:
            self._console.print(f"{name}: {note}", highlight=False, markup=False, soft_wrap=True)

        def advance(count: int) -> None:
            nonlocal done, said
            done += count
            if time.monotonic() - said >= LINE_EVERY_S:
                said = time.monotonic()
                say(f"{done}/{total}, {said - started:.0f} s")

        say(f"0/{total}")
        try:
            yield advance
        finally:
            say(f"{done}/{total} in {time.monotonic() - started:.1f} s")
