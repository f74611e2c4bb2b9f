"""Parallel map of one function over many jobs in worker processes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from typing import TypeVar

from simic.contracts.errors import ConfigError, TransientError
from simic.runtime.freed_memory import keep_freed_memory

__all__ = ["THREAD_VARIABLES", "run_apart", "run_jobs", "worker_count"]

J = TypeVar("J")
R = TypeVar("R")

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Environment variables that numeric libraries read once, when they load."""
_ONE_THREAD_EACH = dict.fromkeys(THREAD_VARIABLES, "1")
_LOCK = threading.Lock()
"""Held while the environment of this process differs from what its owner made it."""
_LOADED_BY = os.getpid()
"""The process that imported this module; a fork of it has another id."""


def worker_count(configured: int | None) -> int:
    """Return the configured number of processes, or one per core that this process may use."""
    if configured is not None:
        return configured
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_jobs(
    function: Callable[[J], R], jobs: Sequence[J], workers: int, on_done: Callable[[R], None] | None = None
) -> list[R]:
    """Return ``[function(job) for job in jobs]``, computed by ``workers`` processes, in the order of the jobs.

    ``function`` is a top-level function; jobs and results are contracts or plain data. ``on_done`` receives every
    result in this process, in order of completion. With one worker or one job, everything happens in this process. The
    first exception of a job is raised here with its type, and the other jobs are stopped; a worker that dies raises
    TransientError. No worker outlives this process. Workers have the environment of this process, with one thread each;
    on Linux limits of resources and what a library read when it loaded are those of the first call.
    """
    if workers < 1:
        raise ConfigError(f"workers: expected at least 1, found {workers}")
    count = min(workers, len(jobs))
    if count < 2:
        return _in_turn(function, jobs, on_done)
    return _in_processes(function, jobs, count, on_done, _context([function.__module__]))


def run_apart(function: Callable[[J], R], job: J, preload: Sequence[str] = ()) -> R:
    """Return ``function(job)``, computed in a process of its own that ends afterwards.

    The function may change what belongs to its process, such as limits. What it raises is raised here; TransientError
    if its process dies.
    """
    return _in_processes(function, [job], 1, None, _context(preload))[0]


def _context(preload: Sequence[str]) -> BaseContext:
    """Return how processes start: on Linux as forks of Python's fork server, which imports the modules of ``preload``.

    The server starts with the first process of this one and loads libraries once, which takes seconds. It runs nothing
    else, so forks share no lock that somebody holds. Elsewhere, and in a fork of this process, whose server is not its
    own, every process is a new interpreter.
    """
    is_fork = os.getpid() != _LOADED_BY
    # Libraries of other systems may start threads as they load. A server that ignores PYTHONPATH cannot be told from
    # where to import.
    if is_fork or sys.platform != "linux" or sys.flags.ignore_environment:
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload([name for name in preload if name != "__main__"])
    return context


def _in_turn(function: Callable[[J], R], jobs: Sequence[J], on_done: Callable[[R], None] | None) -> list[R]:
    results = []
    for job in jobs:
        results.append(function(job))
        if on_done is not None:
            on_done(results[-1])
    return results


def _in_processes(
    function: Callable[[J], R],
    jobs: Sequence[J],
    workers: int,
    on_done: Callable[[R], None] | None,
    context: BaseContext,
) -> list[R]:
    lifeline, hold = context.Pipe(duplex=False)
    with _LOCK:
        environment = {**os.environ, **_ONE_THREAD_EACH}
    pool = ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(lifeline, environment))
    try:
        futures = _submitted(pool, function, jobs)
        for future in as_completed(futures):
            result = future.result()
            if on_done is not None:
                on_done(result)
        results = [future.result() for future in futures]
        pool.shutdown()
        return results
    except BrokenProcessPool as error:
        raise TransientError(
            f"a worker process died while {len(jobs)} jobs ran in {workers} processes "
            "(killed, or out of memory); try again, with fewer workers if it happens again"
        ) from error
    finally:
        hold.close()
        pool.shutdown(cancel_futures=True)
        lifeline.close()


def _submitted(pool: ProcessPoolExecutor, function: Callable[[J], R], jobs: Sequence[J]) -> list[Future[R]]:
    """Submit the jobs, which starts the workers.

    Raises:
        TransientError: if the server that forks them dies meanwhile.
    """
    try:
        with _uninterrupted(), _starting():
            return [pool.submit(function, job) for job in jobs]
    except (EOFError, ConnectionError) as error:
        raise TransientError("the process that starts workers died (killed, or out of memory); try again") from error


def _begin(lifeline: Connection, environment: Mapping[str, str]) -> None:
    """Give this worker the present environment of the parent, which may differ from that in which the server started.

    The worker ends as soon as the other end of the pipe closes, which also happens when the parent dies. Ctrl-C reaches
    workers as well; the parent handles it.
    """
    os.environ.clear()
    os.environ.update(environment)
    keep_freed_memory()
    if "numpy.random" in sys.modules:  # forks of one server would draw the same numbers
        sys.modules["numpy.random"].seed()
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def follow() -> None:
        wait([lifeline])
        os._exit(1)

    threading.Thread(target=follow, name="lifeline", daemon=True).start()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let Ctrl-C wait until workers have started, for seconds at most; they and their server never get it.

    It reaches all processes of a terminal. The server ignores it only when it has loaded its modules, and a worker
    fails that begins while this process ends.
    """
    is_main, waits = threading.current_thread() is threading.main_thread(), False

    def note(*_: object) -> None:
        nonlocal waits
        waits = True

    # First, because another thread may get the signal, and an exception before `try` would leave it blocked.
    handler = signal.signal(signal.SIGINT, note) if is_main else None
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # what starts here inherits it
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if is_main:
            signal.signal(signal.SIGINT, signal.SIG_DFL if handler is None else handler)
        if waits:
            signal.raise_signal(signal.SIGINT)


@contextmanager
def _starting() -> Iterator[None]:
    """Let new interpreters use one thread each, and import from where this one does, never from the present folder.

    The variables must be set before they load numeric libraries.
    """
    path = os.pathsep.join(place for place in sys.path if place)
    values = {**_ONE_THREAD_EACH, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    with _LOCK:
        before = {name: os.environ.get(name) for name in values}
        os.environ.update(values)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
