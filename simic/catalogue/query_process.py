"""Queries of users, each in a process of its own with limits for memory, time and disk.

This module does not load DuckDB; ``query_worker`` does, in the other process.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, Any, BinaryIO, NamedTuple, cast

from simic.contracts import errors
from simic.contracts.errors import ResourceLimitError, SimicError, TransientError
from simic.runtime.files import scratch_dir
from simic.runtime.home import Home
from simic.runtime.process_pool import THREAD_VARIABLES

__all__ = ["Limits", "ask", "ask_parquet"]

_READ_BYTES = 1 << 16
_DEBUG_VARIABLE = "SIMIC_DEBUG"
_SECRET = ("SIMIC_SIGNING_KEY", "SIMIC_SERVICES_LOGIN", "REDIS_URL", "PREFECT_")
"""Prefixes of environment variables that the query's process must not receive."""


class Limits(NamedTuple):
    """Limits of a query."""

    timeout_s: float = 300.0
    """Seconds to wait for the answer in total; the time that the reader takes over rows does not count."""
    memory_mb: int = 1024
    """Megabytes of memory; the limit of temporary disk is eight times as much."""


_USUAL = Limits()


def ask(
    home: Home,
    sql: str,
    limits: Limits = _USUAL,
    on_columns: Callable[[list[str]], object] | None = None,
    parameters: Mapping[str, str] | None = None,
) -> Generator[dict[str, Any], None, None]:
    """Yield the rows of one SELECT over the views as plain JSON objects, as they come; close it when done.

    Args:
        home: home whose views are asked.
        sql: one SELECT.
        limits: time and memory of the query.
        on_columns: receives the names of the columns before the first row, or before the end if there is no row.
        parameters: values of the names that ``sql`` has after a dollar sign.

    Raises:
        ConfigError: SQL that is wrong or does more than read; the message is DuckDB's own.
        ResourceLimitError: the query needs more than ``limits``; its process and temporary files are gone.
    """
    with _process(home, sql, limits, parameters=parameters) as process:
        for mark, content in _messages(process, limits):
            if mark == b"r":
                yield content
            elif mark == b"c" and on_columns is not None:
                on_columns(content)


def ask_parquet(home: Home, sql: str, limits: Limits, file: IO[bytes], limit: int | None = None) -> int:
    """Write the rows of one SELECT over the views, ``limit`` at most, to ``file`` as Parquet and return their number.

    Types are DuckDB's; rows are streamed, so memory does not grow with their number. Raises as ``ask``.
    """
    with _process(home, sql, limits, file.fileno(), limit) as process:
        return int(next(content for mark, content in _messages(process, limits) if mark == b"."))


def _messages(process: subprocess.Popen[bytes], limits: Limits) -> Iterator[tuple[bytes, Any]]:
    """Yield the messages of the process up to its last one; raise the error that it reports."""
    for line in _lines(process, limits):
        mark, content = line[:1], json.loads(line[1:] or b"null")
        if mark == b"e":
            raise _error(content)
        yield mark, content
        if mark == b".":
            return


@contextmanager
def _process(
    home: Home,
    sql: str,
    limits: Limits,
    parquet_fd: int | None = None,
    limit: int | None = None,
    parameters: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Yield the process that answers; it and its temporary files are removed afterwards in any case."""
    with ExitStack() as stack:
        try:
            tmp = stack.enter_context(scratch_dir(home, "query-", is_plain=True))
        except OSError as error:
            raise TransientError(
                f"cannot make a folder in {home.tmp}: {error.strerror or error}; check space and permissions"
            ) from error
        request: dict[str, Any] = {
            "home": str(home.root),
            "lake_url": home.lake_url,
            "sql": sql,
            "parameters": parameters,
            "parquet_fd": parquet_fd,
            "limit": limit,
        }
        request |= limits._asdict()
        # One thread per library, because each more would take address space. -P: modules are not imported from the
        # current folder.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_SECRET)}
        environment = inherited | dict.fromkeys(THREAD_VARIABLES, "1") | {"MALLOC_ARENA_MAX": "2"}
        process = subprocess.Popen(  # noqa: S603 - no shell, and words of our own
            [sys.executable, "-P", "-m", "simic.catalogue.query_worker", str(tmp)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if _DEBUG_VARIABLE in os.environ else subprocess.DEVNULL,
            env=environment,
            pass_fds=() if parquet_fd is None else (parquet_fd,),
            process_group=0,  # so that the whole group can be ended, and Ctrl-C reaches it through this process
        )
        stack.callback(_end, process)
        request_pipe = cast("BinaryIO", process.stdin)
        with suppress(BrokenPipeError):  # it has ended, and its last message says why
            request_pipe.write(json.dumps(request).encode() + b"\n")
            request_pipe.flush()
        yield process


def _lines(process: subprocess.Popen[bytes], limits: Limits) -> Iterator[bytes]:
    """Yield the output line by line; raise ResourceLimitError if the process is silent for too long or dies."""
    source = cast("BinaryIO", process.stdout).fileno()
    left_s: float | None = None  # making the catalogue does not count as part of the query
    pieces: list[bytes] = []
    with selectors.DefaultSelector() as selector:
        selector.register(source, selectors.EVENT_READ)
        while True:
            asked_at = time.monotonic()
            if not selector.select(left_s):
                raise _too_long(limits)
            if left_s is not None:
                left_s = max(0.0, left_s - (time.monotonic() - asked_at))
            read = os.read(source, _READ_BYTES)
            if not read:
                raise _death(process.wait(), limits)
            *whole, rest = read.split(b"\n")
            if whole:
                whole[0] = b"".join([*pieces, whole[0]])
                pieces = []
                if left_s is None:
                    left_s = limits.timeout_s
                yield from whole
            pieces.append(rest)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process at once: its result is no longer needed."""
    with suppress(ProcessLookupError, PermissionError):  # it has ended already
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()
    process.wait()


def _error(message: dict[str, str]) -> SimicError:
    """Return the error as it was raised in the other process."""
    kind: type[SimicError] = getattr(errors, message["kind"])
    return kind(message["message"])


def _too_long(limits: Limits) -> ResourceLimitError:
    return ResourceLimitError(
        f"the query was not answered within its limit of {limits.timeout_s:g} s; ask for less, or give it longer with "
        "--timeout"
    )


def _death(status: int, limits: Limits) -> SimicError:
    """Return the error for a process that ended without a message: killed, or by a failed allocation in a library."""
    if status == -signal.SIGXCPU:
        return _too_long(limits)
    if status < 0:
        return ResourceLimitError(
            f"the query's process died of {signal.Signals(-status).name}, most likely because it needed more than its "
            f"limit of {limits.memory_mb} MB of memory; ask for less, or give it more with --memory-mb"
        )
    return SimicError(
        f"the query's process ended with status {status} before it answered; `simic --debug sql ...` shows what it said"
    )
