"""Jobs for worker processes, in a module of its own: a worker imports it by name."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

from simic.contracts.errors import DatasetError
from simic.runtime.process_pool import THREAD_VARIABLES, run_jobs

LOADED_BY = os.getpid()
"""The process that imported this module; its forks have it too."""


def first_waits_for_last(job: tuple[int, str]) -> int:
    number, directory = job
    while number == 0 and not Path(directory, "29").exists():
        time.sleep(0.01)
    Path(directory, str(number)).touch()
    return number


def refuse_three(job: int) -> int:
    if job == 3:
        raise DatasetError(f"job {job} is unusable")
    return job


def die_at_two(job: tuple[int, str]) -> int:
    number, directory = job
    if number == 2:
        Path(directory, "dying").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def refuse_or_sleep(job: int) -> int:
    if job == 0:
        raise DatasetError("first")
    time.sleep(60)
    return job


def look_around(_job: int) -> dict[str, object]:
    return {
        "threads": [os.environ.get(name) for name in THREAD_VARIABLES],
        "environment": dict(os.environ),
        "pid": os.getpid(),
    }


def loaded_by(_job: int) -> int:
    return LOADED_BY


def threads_of_torch(_job: int) -> int:
    import torch

    return torch.get_num_threads()


def resident_after_freeing(size: int) -> int:
    """Return by how many bytes this process is larger after it used and freed a block of ``size`` bytes."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = resident()
    block = bytearray(b"x") * size
    del block
    return resident() - before


def data_after_freeing(size: int) -> int:
    """Return by how many bytes the data segment is larger after a block of ``size`` bytes, never used, was freed."""

    def data() -> int:
        return int(Path("/proc/self/statm").read_text("ascii").split()[5]) * os.sysconf("SC_PAGE_SIZE")

    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    before = data()
    libc.free(ctypes.c_void_p(libc.malloc(ctypes.c_size_t(size))))
    return data() - before


def leave_pid_and_sleep(directory: str) -> None:
    Path(directory, str(os.getpid())).touch()
    time.sleep(120)


if __name__ == "__main__":
    run_jobs(leave_pid_and_sleep, [sys.argv[1]] * 2, 2)
