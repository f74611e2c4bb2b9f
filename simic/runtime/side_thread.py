"""Writes records in batches from a thread of its own, so that a slow or failing receiver never holds up the work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, NamedTuple, TypeVar

__all__ = ["SideThread", "Tally"]

T = TypeVar("T")

CAPACITY = 20_000
"""Records that wait at most; further ones are dropped and counted. An update of a training takes about 4 KB."""


class Tally(NamedTuple):
    """What went wrong so far."""

    failures: int
    """Batches, or ends, that could not be written; their records are lost. A thread that was given up is one."""
    dropped: int
    """Records that found no room, or were not written before the thread was given up."""
    error: str | None
    """The last failure."""


class SideThread(Generic[T]):
    """Passes records on to ``write``, in order and in batches, at most one batch every ``every_s`` seconds."""

    def __init__(
        self, name: str, write: Callable[[Sequence[T]], None], *, every_s: float, capacity: int = CAPACITY
    ) -> None:
        """Start the thread; it ends with ``close``, or with the process."""
        self._write, self._every_s, self._capacity = write, every_s, capacity
        self._lock, self._closing = threading.Lock(), threading.Event()
        self._waiting: list[T] = []
        self._last: Callable[[], None] | None = None
        self._failures, self._dropped = 0, 0
        self._error: str | None = None
        self._thread = threading.Thread(target=self._run, name=f"simic {name}", daemon=True)
        self._thread.start()

    def put(self, record: T) -> None:
        """Hand over a record; returns at once, and never raises."""
        with self._lock:
            if len(self._waiting) < self._capacity:
                self._waiting.append(record)
            else:
                self._dropped += 1

    def close(self, timeout_s: float, last: Callable[[], None] | None = None) -> Tally:
        """Write what waits, call ``last`` in the thread, end it, and return what went wrong.

        A thread that takes longer than ``timeout_s`` is given up.
        """
        self._last = last
        self._closing.set()
        self._thread.join(timeout_s)
        with self._lock:
            if self._thread.is_alive():
                self._dropped += len(self._waiting)
                self._waiting.clear()
                self._failures += 1
                self._error = f"it did not end within {timeout_s:g} s"
            return Tally(self._failures, self._dropped, self._error)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._closing.wait(self._every_s)
            with self._lock:
                batch, self._waiting = self._waiting, []
            if batch:
                self._attempt(partial(self._write, batch))
        if self._last is not None:
            self._attempt(self._last)

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - whatever a receiver raises must not end a training
            with self._lock:
                self._failures += 1
                self._error = f"{type(error).__name__}: {error}"
