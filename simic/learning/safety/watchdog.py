"""A deadline for every update, kept by a thread, whatever calls the training.

At the deadline the training thread gets ``UpdateTimeoutError`` at its next Python instruction: that ends a loop, a wait
for a lock with a timeout, or a read that returns. Native code that never returns cannot be interrupted by Python; if
the training thread still hangs ``GRACE_S`` later, the stacks of all threads are written to stderr and the process ends
at once with exit code 4. Checkpoints survive that like a kill. A native call that holds the interpreter lock for ever
stops this thread too, and only the caller's own deadline helps (the stage's in Prefect).

The error may arrive at the first instruction of ``__exit__``, which then does not run. So a training has also ended if
the call that entered the watchdog is no longer on the stack of its thread.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Self

from simic.contracts.errors import TransientError, UpdateTimeoutError

__all__ = ["Watchdog"]

GRACE_S = 30.0
"""Seconds from the error in the training thread to the end of the process."""
_ARRIVAL_STEPS = 1_000_000
"""Steps of a loop within which an error that a thread raises in itself arrives; it takes one or two."""


class Watchdog:
    """Watches the thread that enters it; the deadline is counted from the last ``reset``."""

    def __init__(self, timeout_s: float, grace_s: float = GRACE_S) -> None:
        """Prepare; entering starts the thread and the first deadline."""
        self._timeout_s, self._grace_s = timeout_s, grace_s
        self._thread_id = 0
        self._entered: FrameType | None = None
        """The call in the watched thread that entered."""
        self._changed = threading.Condition()
        self._deadline = 0.0
        self._has_fired = self._is_over = False
        self._thread = threading.Thread(target=self._watch, name="simic-watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._thread_id, self._entered = threading.get_ident(), sys._getframe(1)  # noqa: SLF001 - documented
        self._deadline = time.monotonic() + self._timeout_s
        self._thread.start()
        return self

    def reset(self, timeout_s: float) -> None:
        """Begin the deadline of the next update.

        Raises:
            UpdateTimeoutError: if the one before has passed.
        """
        with self._changed:
            self._timeout_s, self._deadline = timeout_s, time.monotonic() + timeout_s
            self._changed.notify()
            has_fired = self._has_fired
        if has_fired:
            raise UpdateTimeoutError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify()
            if self._has_fired:
                self._absorb()
        self._thread.join()
        self._entered = None
        if self._has_fired:
            raise UpdateTimeoutError(
                f"an update took more than {self._timeout_s:g} s (train.safety.update_timeout_s, times "
                "train.safety.conservative.timeout_factor in that mode), so the training was ended; its checkpoints "
                "stay. Give the command again, `simic train` with --resume; if it hangs again, raise the setting or "
                "look at what the process waits for"
            ) from error

    def _absorb(self) -> None:
        """Let an error that has not arrived yet arrive here, and nowhere else.

        A second one takes the place of the first, or follows it. Taking back the first instead would leave CPython 3.11
        with its mark of a pending error set for good, and a profiled or traced thread then hangs at its next call.
        """
        try:
            _raise_in(self._thread_id, UpdateTimeoutError)
            for _ in range(_ARRIVAL_STEPS):
                pass
        except UpdateTimeoutError:
            return

    def _watch(self) -> None:
        if self._wait() and self._fire() and not self._ends_within_grace():
            faulthandler.dump_traceback(file=sys.__stderr__ or 2, all_threads=True)
            os.write(2, b"simic: an update hangs in native code and cannot be interrupted; the process ends\n")
            os._exit(TransientError.exit_code)

    def _wait(self) -> bool:
        """Wait for a deadline to pass, or for the end; return whether it has passed."""
        with self._changed:
            while not self._is_over and (left := self._deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            return not self._is_over

    def _fire(self) -> bool:
        with self._changed:
            if self._is_over:
                return False
            self._has_fired = True
            _raise_in(self._thread_id, UpdateTimeoutError)
            return True

    def _ends_within_grace(self) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._is_over, self._grace_s) or not self._is_inside()

    def _is_inside(self) -> bool:
        """Return whether the call that entered is still running."""
        frame = sys._current_frames().get(self._thread_id)  # noqa: SLF001 - documented
        while frame is not None and frame is not self._entered:
            frame = frame.f_back
        return frame is not None


def _raise_in(thread_id: int, error: type[BaseException]) -> None:
    """Raise ``error`` in a thread at its next Python instruction, in place of one that has not arrived yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), ctypes.py_object(error))
