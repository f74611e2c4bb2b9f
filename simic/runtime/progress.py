"""Progress of long work, shown to a person on stderr."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichBars
from rich.table import Column

__all__ = ["Advance", "NoProgress", "Progress", "RichProgress", "Titled", "no_advance"]


class Advance(Protocol):
    """Callback that adds a number of finished units; ``note`` replaces the text beside the bar unless it is None."""

    def __call__(self, count: int, /, note: str | None = None) -> None:
        """Add ``count`` units, which may be 0."""


LINE_EVERY_S = 10.0


class Progress(Protocol):
    """Display of progress; it does not affect the work."""

    def task(self, name: str, total: int) -> AbstractContextManager[Advance]:
        """Begin work of ``total`` units, which ends with the block; yields the callback for finished units."""


class NoProgress:
    """Progress that displays nothing."""

    @contextmanager
    def task(self, name: str, total: int) -> Iterator[Advance]:  # noqa: ARG002 - the protocol's names
        """Yield a callback that does nothing."""
        yield no_advance


def no_advance(_count: int, /, note: str | None = None) -> None:
    """Display nothing."""


class Titled:
    """Progress that passes work on to another one under the name ``<title>: <name>``."""

    def __init__(self, progress: Progress, title: str) -> None:
        self._progress, self._title = progress, title

    def task(self, name: str, total: int) -> AbstractContextManager[Advance]:
        """Begin work under its titled name."""
        return self._progress.task(f"{self._title}: {name}", total)


class _Remarks(Console):
    """A console whose reader may leave."""

    def on_broken_pipe(self) -> None:
        """Display nothing more. Rich would lead the standard output to nowhere, and end the thread that wrote."""
        self.quiet = True


class RichProgress:
    """Live bars on a terminal; elsewhere plain lines at the start, at intervals and at the end.

    A thread writes the lines of work whose units take longer than the interval.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = _Remarks(file=sys.stderr) if console is None else console
        self._bars: RichBars | None = None
        self._open_tasks = 0

    def task(self, name: str, total: int) -> AbstractContextManager[Advance]:
        """Show a bar if stderr is a terminal, plain lines otherwise."""
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
                TextColumn("{task.fields[note]}", markup=False, table_column=Column(no_wrap=True)),
                console=self._console,
            )
        bars = self._bars
        if self._open_tasks == 0:
            bars.start()
        self._open_tasks += 1
        bar = bars.add_task(name, total=total, note="")

        def advance(count: int, /, note: str | None = None) -> None:
            bars.advance(bar, count)
            if note is not None:
                bars.update(bar, note=note)

        try:
            yield advance
        finally:
            self._open_tasks -= 1
            if self._open_tasks == 0:
                bars.stop()
                self._bars = None  # finished bars stay on the screen; the next task begins below them

    @contextmanager
    def _lines(self, name: str, total: int) -> Iterator[Advance]:
        started = time.monotonic()
        done, said, beside = 0, started, ""
        lock, is_over = threading.Lock(), threading.Event()

        def say(note: str) -> None:
            self._console.print(f"{name}: {note}", highlight=False, markup=False, soft_wrap=True)

        def say_if_due() -> None:
            nonlocal said
            with lock:
                if time.monotonic() - said >= LINE_EVERY_S:
                    said = time.monotonic()
                    say(f"{done}/{total}, {said - started:.0f} s{beside and f', {beside}'}")

        def advance(count: int, /, note: str | None = None) -> None:
            nonlocal done, beside
            done += count
            beside = beside if note is None else note
            say_if_due()

        def follow() -> None:
            while not is_over.wait(max(1.0, LINE_EVERY_S / 2)):
                say_if_due()

        say(f"0/{total}")
        thread = threading.Thread(target=follow, name="progress", daemon=True)
        thread.start()
        try:
            yield advance
        finally:
            is_over.set()
            thread.join()
            say(f"{done}/{total} in {time.monotonic() - started:.1f} s")
