"""The process that answers one query and then ends: ``python -m simic.catalogue.query_worker``.

Started by ``query_process``.
What a query takes is bounded from outside DuckDB, because DuckDB's own accounts leave out what functions allocate: one
call of ``repeat`` or ``range`` may ask for any amount. Here the kernel refuses.

Its argument is the folder for its temporary files, the request one JSON line on standard input. The answer is lines on
standard output: ``s`` when the query begins, ``c`` and the names of the columns, ``r`` and a row as JSON, ``e`` and an
error, ``.`` and the number of rows at the end. Rows asked for as Parquet go to an inherited file descriptor instead.
Standard input stays open: once it closes, the asking process has ended, and this process ends too.
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
from simic.runtime.settings import Home

__all__ = ["main"]

ROOM_MB = 256
"""Address space beyond the query's memory: stacks and heaps that the C library reserves for threads, of which little is
ever touched, and the rows on their way out. Measured with DuckDB 2.0 and two threads: a query that stays within its
memory needs up to 110 MB."""
ROW_SHARE = 32
"""One row as text may be that part of the memory, so that whoever reads it can hold it, decoded, in as much."""

_PAUSE_S = 0.02
"""Between two looks for temporary files after the asker died."""
_QUIET_LOOKS = 50
_MOST_LOOKS = 500


def main() -> None:
    """Answer the request on standard input."""
    tmp = Path(sys.argv[1])
    told = sys.stdin.buffer.readline()
    if not told.endswith(b"\n"):
        _leave(tmp)
    request = json.loads(told)
    lifeline = threading.Thread(target=_follow, args=(tmp,), name="lifeline", daemon=True)
    lifeline.start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever asked ends this process
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    out = sys.stdout.buffer
    sys.excepthook = partial(_report, lifeline)
    with suppress(BrokenPipeError):  # the asker died
        _respond(request, tmp, out)
    # The asker kills this process once it has the answer. If the asker died, the lifeline deletes the files: an exit
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
        lake, catalogue, request["sql"], tmp, memory_mb, on_columns=lambda names: _tell(out, "c", list(names))
    )
    for count, row in enumerate(rows, 1):  # noqa: B007 - the number of rows is sent at the end
        text = json.dumps(row, allow_nan=False)
        if len(text) > longest:
            raise ResourceLimitError(
                f"a row of {len(text) / 2**20:,.0f} MB as JSON is more than {longest / 2**20:g} MB, which is what one "
                f"row may take of the query's {memory_mb} MB; ask for less, or give it more with --memory-mb"
            )
        out.write(f"r{text}\n".encode())
        if is_first:  # later ones go when the buffer is full: somebody waits to see that anything comes
            out.flush()
            is_first = False
    _tell(out, ".", count)


def _limit_memory(memory_mb: int) -> None:
    """From now on the kernel refuses what goes beyond. Counted from what the libraries have reserved by now, for that
    is mostly address space that nobody uses, and differs between versions."""
    pages = Path("/proc/self/statm")
    if not pages.exists():
        return  # no Linux: DuckDB's own accounts and the time limit have to do
    reserved = int(pages.read_text().split()[0]) * resource.getpagesize()
    hardest = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = reserved + (memory_mb + ROOM_MB) * 2**20
    if hardest != resource.RLIM_INFINITY:
        limit = min(limit, hardest)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hardest))


def _limit_processor_time(timeout_s: float) -> None:
    """Ends an answer without end, whose reader never has to wait: all threads at work for the whole time limit."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = math.ceil(used.ru_utime + used.ru_stime + THREADS * timeout_s)
    hardest = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (limit if hardest < 0 else min(limit, hardest), hardest))


def _tell(out: BinaryIO, mark: str, what: object) -> None:
    out.write(f"{mark}{'' if what is None else json.dumps(what)}\n".encode())
    out.flush()


def _follow(tmp: Path) -> None:
    """Waits for the end of whoever asked, who can no longer clear up either."""
    try:
        while os.read(sys.stdin.fileno(), 1):
            pass
        _leave(tmp)
    finally:  # also where the memory limit is reached while it clears up
        os._exit(1)


def _leave(tmp: Path) -> NoReturn:
    """Delete the temporary files and exit.

    The query goes on meanwhile and may make its folder anew, so deletion ends once the folder has been gone for
    ``_QUIET_LOOKS`` looks in a row.
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
    """What nobody foresaw reaches the person as one sentence; standard error has all of it, if anybody looks."""
    sys.__excepthook__(kind, error, trace)
    message = f"the query's process failed: {kind.__name__}: {error}"
    with suppress(BrokenPipeError):
        _tell(sys.stdout.buffer, "e", {"kind": SimicError.__name__, "message": message})
    lifeline.join()


if __name__ == "__main__":
    main()
