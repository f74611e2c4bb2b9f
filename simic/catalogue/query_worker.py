"""The process that answers one query and then ends: ``python -m simic.catalogue.query_worker``.

``query_process`` starts it. Memory is limited by the kernel, because DuckDB's own limit does not cover what functions
allocate: one call of ``repeat`` or ``range`` may request any amount.

The argument is the folder for temporary files; the request is one JSON line on standard input. The answer is lines on
standard output: ``s`` when the query begins, ``c`` with the names of the columns, ``r`` with a row as JSON, ``e`` with
an error, ``.`` with the number of rows at the end. Rows requested as Parquet are written to an inherited file
descriptor instead. Standard input stays open: once it closes, the requesting process has ended, and this process ends
too.
"""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import signal
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NoReturn

from simic.catalogue.query import THREADS, answer, open_catalogue, write_parquet
from simic.contracts.errors import ResourceLimitError, SimicError
from simic.runtime.files import disk_full_as_transient
from simic.runtime.home import Home

__all__ = ["main"]

ROOM_MB = 256
"""Address space beyond the query's memory: stacks and heaps that the C library reserves for threads and hardly uses,
and rows being sent. Measured with DuckDB 2.0 and two threads: a query within its memory limit needs up to 110 MB."""
ROW_SHARE = 32
"""The memory divided by this is the largest size of one row as text, so that its reader can hold it, decoded, in as
much memory."""

_PAUSE_S = 0.02
"""Seconds between two checks for temporary files after the requesting process died."""
_QUIET_LOOKS = 50
_MOST_LOOKS = 500


def main() -> None:
    """Answer the request on standard input."""
    tmp = Path(sys.argv[1])
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        _leave(tmp)
    request = json.loads(line)
    lifeline = threading.Thread(target=_follow, args=(tmp,), name="lifeline", daemon=True)
    lifeline.start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the requesting process ends this one
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    out = sys.stdout.buffer
    sys.excepthook = partial(_report, lifeline)
    with suppress(BrokenPipeError):  # the requesting process died
        _respond(request, tmp, out)
    # The requesting process kills this one once it has the answer. If it died, the lifeline deletes the files: an exit
    # before that would leave them.
    lifeline.join()


def _respond(request: dict[str, Any], tmp: Path, out: BinaryIO) -> None:
    """Write the answer or one error."""
    try:
        _answer(request, tmp, out)
    except SimicError as error:
        _tell(out, "e", {"kind": type(error).__name__, "message": str(error)})
    except MemoryError:
        message = (
            f"the query needs more than its limit of {request['memory_mb']} MB of memory for the rows of its answer; "
            "ask for less, or give it more with --memory-mb"
        )
        _tell(out, "e", {"kind": ResourceLimitError.__name__, "message": message})


def _answer(request: dict[str, Any], tmp: Path, out: BinaryIO) -> None:
    memory_mb = request["memory_mb"]
    longest = memory_mb * 2**20 // ROW_SHARE
    lake, catalogue = open_catalogue(Home(Path(request["home"]), request["lake_url"]), tmp)
    _limit_memory(memory_mb)
    _limit_processor_time(request["timeout_s"])
    _tell(out, "s", None)
    if (descriptor := request["parquet_fd"]) is not None:
        with disk_full_as_transient(), os.fdopen(descriptor, "wb", closefd=False) as file:
            count = write_parquet(lake, catalogue, request["sql"], tmp, memory_mb, file, request["limit"])
        _tell(out, ".", count)
        return
    is_first, count = True, 0
    rows = answer(
        lake,
        catalogue,
        request["sql"],
        tmp,
        memory_mb,
        request["parameters"],
        on_columns=lambda names: _tell(out, "c", list(names)),
    )
    for count, row in enumerate(rows, 1):  # noqa: B007 - the number of rows is sent at the end
        text = json.dumps(row, allow_nan=False)
        if len(text) > longest:
            raise ResourceLimitError(
                f"a row of {len(text) / 2**20:,.0f} MB as JSON is more than {longest / 2**20:g} MB, which is what one "
                f"row may take of the query's {memory_mb} MB; ask for less, or give it more with --memory-mb"
            )
        out.write(f"r{text}\n".encode())
        if is_first:  # later rows are sent when the buffer is full; the first one at once, to show that rows arrive
            out.flush()
            is_first = False
    _tell(out, ".", count)


def _limit_memory(memory_mb: int) -> None:
    """Limit the address space from now on.

    The limit counts from what the libraries have reserved by now, which is mostly unused and differs between versions.
    """
    pages = Path("/proc/self/statm")
    if not pages.exists():
        return  # not Linux: only DuckDB's own limit and the time limit apply
    reserved = int(pages.read_text().split()[0]) * resource.getpagesize()
    hardest = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = reserved + (memory_mb + ROOM_MB) * 2**20
    if hardest != resource.RLIM_INFINITY:
        limit = min(limit, hardest)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hardest))


def _limit_processor_time(timeout_s: float) -> None:
    """Limit the processor time to all threads working for the whole time limit, which ends an endless answer."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = math.ceil(used.ru_utime + used.ru_stime + THREADS * timeout_s)
    hardest = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (limit if hardest < 0 else min(limit, hardest), hardest))


def _tell(out: BinaryIO, mark: str, what: object) -> None:
    out.write(f"{mark}{'' if what is None else json.dumps(what)}\n".encode())
    out.flush()


def _follow(tmp: Path) -> None:
    """Waits until the requesting process has ended, and then deletes the files that it can no longer delete."""
    try:
        while os.read(sys.stdin.fileno(), 1):
            pass
        _leave(tmp)
    finally:  # also if the memory limit is reached while files are deleted
        os._exit(1)


def _leave(tmp: Path) -> NoReturn:
    """Delete the temporary files and exit.

    The query continues meanwhile and may create its folder again, so deletion ends once the folder has been absent for
    ``_QUIET_LOOKS`` checks in a row.
    """
    absent = 0
    for _ in range(_MOST_LOOKS):
        absent = 0 if tmp.exists() else absent + 1
        shutil.rmtree(tmp, ignore_errors=True)
        tmp.with_name(f"{tmp.name}.duckdb").unlink(missing_ok=True)  # a catalogue that was about to be renamed
        if absent == _QUIET_LOOKS:
            break
        time.sleep(_PAUSE_S)
    os._exit(1)


def _report(
    lifeline: threading.Thread, kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Report an unexpected error in one sentence; standard error has the traceback."""
    sys.__excepthook__(kind, error, trace)
    message = f"the query's process failed: {kind.__name__}: {error}"
    with suppress(BrokenPipeError):
        _tell(sys.stdout.buffer, "e", {"kind": SimicError.__name__, "message": message})
    lifeline.join()


if __name__ == "__main__":
    main()
