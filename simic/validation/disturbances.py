"""Faults of a machine, injected into a process of its own in which a candidate decides.

Each case is one fault. The process injects it, lets the candidate load and decide, ends the fault, and lets the
candidate load and decide again. While a fault lasts an error is allowed, where the fault takes something that is
needed; a decision that differs in any bit is not, and neither is one after the fault. A policy needs neither a network
nor a device: two cases hold it to that.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import psutil

from simic.contracts.errors import SimicError
from simic.runtime.process_pool import run_apart

__all__ = ["CASES", "Decider", "Job", "Load", "examine", "failures"]

Decider = Callable[[], bytes]
"""Decides in all states and returns the bytes of actions and log-probabilities."""
Load = Callable[[Path], Decider]
"""Verifies and loads the policy of a folder."""

CASES = ("memory pressure", "resource starvation", "timing variation", "no network", "no device",
         "data corruption")  # fmt: skip
_SPARE_BYTES = 16 * 1024 * 1024
_COPIES = 16
"""Damaged copies of the policy's folder: one bit or the end of one file each."""
_THREADS, _MOST_PAUSE_S = 4, 0.02
_MOST_PROCESS_S = 300
_ERRORS = (
    SimicError,
    ArithmeticError,
    ImportError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


class Job(NamedTuple):
    """A sealed policy and the decisions that it must repeat while faults are injected; plain data for a process."""

    load: Load
    folder: Path
    """Folder of the sealed policy."""
    expected: bytes
    """What the candidate decides without faults."""
    most_s: float
    """Seconds in which it must decide again after a fault."""


def failures(job: Job) -> dict[str, str]:
    """Run all cases in a process of its own and return why a case failed, by name.

    Raises:
        TransientError: if the process dies.
    """
    return run_apart(examine, job, ["simic.controllers.policy_files", "simic.validation.episodes"])


def examine(job: Job) -> dict[str, str]:
    """Inject every fault into this process; for a process that ends afterwards."""
    signal.alarm(_MOST_PROCESS_S)  # a policy that hangs ends with its process
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # libraries read it when they first look for a device
    decide = job.load(job.folder)
    runs: dict[str, Callable[[], str]] = {
        "memory pressure": partial(_limited, job, decide, "RLIMIT_AS", _address_space() + _SPARE_BYTES),
        "resource starvation": partial(_limited, job, decide, "RLIMIT_NOFILE", 0),
        "timing variation": partial(_together, job, decide),
        "no network": partial(_alone, job, decide),
        "no device": partial(_check_decisions, job, decide, "without a device"),
        "data corruption": partial(_damaged, job, decide),
    }
    return {name: why for name in CASES if (why := runs[name]())}


def _check_decisions(job: Job, decide: Decider, when: str = "after the fault") -> str:
    """Return what is wrong with the decisions of the policy in memory, and of one that is loaded anew."""
    started = time.monotonic()
    try:
        decisions = [decide(), job.load(job.folder)()]
    except _ERRORS as error:
        return f"{when}: {type(error).__name__}: {str(error)[:200]}"
    if any(decision != job.expected for decision in decisions):
        return f"other decisions {when}"
    took = time.monotonic() - started
    return f"took {took:.0f} s to decide again" if took > job.most_s else ""


def _limited(job: Job, decide: Decider, name: str, limit: int) -> str:
    """Lower a limit of this process while the policy decides, and while it is loaded."""
    why = ""
    with _limit(name, limit):
        for run in (decide, lambda: job.load(job.folder)()):
            try:
                why = why or ("" if run() == job.expected else "other decisions during the fault")
            except _ERRORS:
                continue  # allowed: what it needs was taken from it
    return why or _check_decisions(job, decide)


@contextmanager
def _limit(name: str, value: int) -> Iterator[None]:
    import resource  # not on every system; where it is absent the case fails

    kind = getattr(resource, name)
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if soft == resource.RLIM_INFINITY else min(soft, value), hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


def _address_space() -> int:
    return int(psutil.Process().memory_info().vms)


def _together(job: Job, decide: Decider) -> str:
    """Let threads decide at once, each after pauses of its own, on one core."""
    outcomes: list[Any] = []

    def run(seed: int) -> None:
        pauses = np.random.default_rng(seed).random(3) * _MOST_PAUSE_S
        for pause in pauses:
            time.sleep(pause)
            try:
                outcomes.append(decide())
            except _ERRORS as error:
                outcomes.append(f"{type(error).__name__}: {str(error)[:200]}")

    with _one_core():
        threads = [threading.Thread(target=run, args=(seed,)) for seed in range(_THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    told = [outcome for outcome in outcomes if isinstance(outcome, str)]
    if told:
        return f"during the fault: {told[0]}"
    return (
        "other decisions during the fault"
        if any(outcome != job.expected for outcome in outcomes)
        else _check_decisions(job, decide)
    )


@contextmanager
def _one_core() -> Iterator[None]:
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _alone(job: Job, decide: Decider) -> str:
    """Refuse every connection, and every lookup of a host, while the policy is loaded and decides."""
    is_cut = True

    def refuse(event: str, _arguments: object) -> None:
        if is_cut and event in {"socket.connect", "socket.getaddrinfo", "socket.sendto"}:
            raise OSError("the network is away")

    sys.addaudithook(refuse)  # it cannot be removed, so it is switched off
    why = _check_decisions(job, decide, "during the fault")
    is_cut = False
    return why or _check_decisions(job, decide)


def _damaged(job: Job, decide: Decider) -> str:
    """Load copies of the folder with one flipped bit, or one file cut short, each of which must be refused."""
    random = np.random.default_rng(0)
    files = sorted(path.name for path in job.folder.iterdir() if path.stat().st_size)
    with TemporaryDirectory(prefix="simic-") as root:
        for number in range(_COPIES):
            copy = Path(root) / str(number)
            shutil.copytree(job.folder, copy)
            name = files[number % len(files)]
            data = bytearray((copy / name).read_bytes())
            if number // len(files) % 2:
                del data[int(random.integers(len(data))) :]
            else:
                data[int(random.integers(len(data)))] ^= 1 << int(random.integers(8))
            (copy / name).write_bytes(data)
            try:
                job.load(copy)
            except SimicError:
                shutil.rmtree(copy)
                continue
            except _ERRORS as error:
                return f"a damaged {name}: expected a typed refusal, found {type(error).__name__}: {error}"
            return f"a damaged {name} was loaded"
    return _check_decisions(job, decide)
