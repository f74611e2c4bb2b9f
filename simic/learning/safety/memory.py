"""Memory: what a process may use and what it uses, and how torch and Python say that there is none left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch

from simic.contracts.errors import OutOfMemoryError

__all__ = ["is_out_of_memory", "memory_limit_bytes", "out_of_memory_typed"]

GROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Files with the limit of the control group of this process in a container: version 2 and version 1."""
CPU_ALLOCATOR = "DefaultCPUAllocator: can't allocate memory"
"""Part of the RuntimeError of torch when the system gives it no memory; a GPU has an error of its own."""


def memory_limit_bytes(max_bytes: float, files: tuple[Path, ...] = GROUP_LIMITS) -> float:
    """Return what this process may use: the least of ``max_bytes``, its control group's limit and the machine's memory.

    A file that is absent, or says ``max``, sets no limit.
    """
    texts = [file.read_text("ascii").strip() for file in files if file.is_file()]
    groups = [float(text) for text in texts if text.isdecimal()]
    return min(max_bytes, float(psutil.virtual_memory().total), *groups)


@contextmanager
def out_of_memory_typed(what: str) -> Iterator[None]:
    """Raise OutOfMemoryError in place of the errors with which Python and torch refuse memory; others pass."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemoryError(_message(what, error)) from error


def is_out_of_memory(error: Exception) -> bool:
    """Return whether memory ran out: in the allocator of a device, of tensors on the CPU, or of Python and arrays."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or CPU_ALLOCATOR in str(error)


def _message(what: str, error: Exception) -> str:
    return (
        f"{what} did not get the memory that it needs: lower train.batch_sequences or train.replay.max_mb, or raise "
        f"the limit of the process (`ulimit -v`, the container). {type(error).__name__}: {str(error)[:200]}"
    )
