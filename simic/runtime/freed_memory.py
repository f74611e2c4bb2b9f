"""How the C library keeps memory that was freed."""

from __future__ import annotations

import ctypes
import os
import sys

__all__ = ["keep_freed_memory"]

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
"""Parameters of ``mallopt``, from glibc's malloc.h."""
_NEVER = -1
"""Threshold that no block reaches; any other is at most 2 GiB, which a worker may free at once."""
_VARIABLES = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")
"""Environment variables with which a user tunes the same."""


def keep_freed_memory() -> bool:
    """Let this process keep freed memory for its next tensors; return whether it does.

    glibc gives large blocks back to the system when they are freed, so a loop that needs the same blocks again pays for
    their page faults each time. The process keeps its peak until it ends. If one of ``_VARIABLES`` is set,
    nothing changes.
    """
    if sys.platform != "linux" or any(name in os.environ for name in _VARIABLES):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # Without blocks of their own, large allocations come from the heap, whose end is never given back.
    return bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, _NEVER))
