"""Victims: processes of their own that do a piece of work and may be killed at any moment, started in milliseconds.

A server process imports everything once, does no work itself, and forks a child for every task; the children are real
processes with memory, descriptors and locks of their own. The test kills a child by its pid and learns from the
server how it ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from support.faults.full_disks import fill, free, on_small_disk

__all__ = ["KILL", "Ending", "Event", "Victims", "victims"]

KILL, HOLD = "kill", "hold"
HELD = ".held"

TESTS = Path(__file__).parents[2]


class Ending(NamedTuple):
    """How a child ended."""

    killed: bool
    """By signal 9, ours."""
    error: str | None
    """Name of the error's type."""
    message: str
    result: dict[str, Any]
    passed: list[str]
    """Checkpoints, in order; known of a killed child too."""


class Victims:
    """The server seen from the test."""

    def __init__(self, server: subprocess.Popen[str]) -> None:
        self._server = server

    def start(self, task: str, home: Path, **arguments: Any) -> int:
        """Begins a task of ``TASKS`` in a new process and returns its pid."""
        return int(self._ask({"task": task, "home": str(home), **arguments})["pid"])

    def wait(self, pid: int) -> Ending:
        """Until the child has ended."""
        answer = self._ask({"wait": pid})
        told = answer["told"]
        if answer["status"] not in (0, -signal.SIGKILL):
            raise AssertionError(f"a child ended with status {answer['status']}: {told}")
        passed = [line["passed"] for line in told if "passed" in line]
        last = next((line for line in told if "error" in line), {"error": None, "message": "", "result": {}})
        return Ending(answer["status"] == -signal.SIGKILL, last["error"], last["message"], last["result"], passed)

    def kill_after(self, delay_s: float, task: str, home: Path, **arguments: Any) -> Ending:
        """A task that gets signal 9 this long after its start, unless it has ended by then."""
        pid = self.start(task, home, **arguments)
        time.sleep(delay_s)
        os.kill(pid, signal.SIGKILL)  # its parent has not reaped it, so the pid is still its own
        return self.wait(pid)

    def start_and_hold(self, home: Path, point: str, passes: int = 1, **arguments: Any) -> int:
        """An ingest that now stands still at a checkpoint, in the midst of its work; ``release`` lets it go on."""
        event = Event(point=point, passes=passes, way=HOLD, room_bytes=0)
        pid = self.start("ingest", home, event=event, **arguments)
        deadline = time.monotonic() + 60
        while not home.with_suffix(HELD).exists():
            assert time.monotonic() < deadline, f"the ingest never came to {point}"
            time.sleep(0.005)
        return pid

    def release(self, home: Path) -> None:
        """What was held goes on."""
        home.with_suffix(HELD).unlink()

    def run(self, task: str, home: Path, **arguments: Any) -> Ending:
        """Start and wait."""
        return self.wait(self.start(task, home, **arguments))

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(question) + "\n")
        self._server.stdin.flush()
        answer: dict[str, Any] = json.loads(self._server.stdout.readline())
        return answer


@contextmanager
def victims(disk: Path | None = None) -> Iterator[Victims]:
    """The server, for as long as the block lasts; ``disk`` is a directory that is a small disk to all of them."""
    paths = [str(TESTS), str(TESTS.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-m", "support.faults.forked_processes"]
    with subprocess.Popen(
        command if disk is None else on_small_disk(command, disk),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
    ) as server:
        yield Victims(server)
        assert server.stdin is not None
        server.stdin.close()


# What follows runs in the server and in its children.


class Event(TypedDict):
    """What happens to an ingest on its way."""

    point: str
    """Name of the checkpoint."""
    passes: int
    """At which pass, from 1."""
    way: str
    """``KILL``, ``HOLD``, or how the disk fills up."""
    room_bytes: int


Say = Callable[[dict[str, Any]], object]
"""Tells the test something; what was told is known even of a killed child."""


def _at(say: Say, home: Path, event: Event | None) -> Callable[[str], None]:
    """A checkpoint at which something happens to this process when its point is passed for the n-th time."""
    left = 0 if event is None else event["passes"]

    def checkpoint(name: str) -> None:
        nonlocal left
        say({"passed": name})
        if event is None or name != event["point"]:
            return
        left -= 1
        if left != 0:
            return
        if event["way"] == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        elif event["way"] == HOLD:
            _hold(home)
        else:
            fill(event["way"], home.parent, event["room_bytes"])

    return checkpoint


def _hold(home: Path) -> None:
    """Stands still until the test has had its look, or has ended without one."""
    held, server = home.with_suffix(HELD), os.getppid()
    held.touch()
    while held.exists() and os.getppid() == server:
        time.sleep(0.005)


def _ingest(say: Say, home: Path, batch_reports: int, event: Event | None = None) -> dict[str, Any]:
    from simic.bus.spool.bus import SpoolBus
    from simic.contracts.settings.run import IngestConfig
    from simic.ingestion.ingest import ingest
    from simic.runtime.clock import utc_now
    from support.builders.reports import BLUEPRINTS
    from support.homes.pipeline import PROVENANCE

    place = _home(home)
    receipt = ingest(
        SpoolBus(place.spool),
        place,
        IngestConfig(batch_reports=batch_reports),
        frozenset(BLUEPRINTS),
        provenance=PROVENANCE,
        clock=utc_now,
        checkpoint=_at(say, home, event),
    )
    return dict(receipt.model_dump(mode="json"))


def _put(_: Say, home: Path, name: str, file: str, topic: str = "tamiyo.field_reports") -> dict[str, Any]:
    from simic.bus.spool.bus import SpoolBus

    return {"source": SpoolBus(_home(home).spool).put(topic, name, Path(file).read_bytes().splitlines())}


def _sql(_: Say, home: Path, query: str) -> dict[str, Any]:
    from simic.catalogue import query as catalogue

    return {"rows": catalogue.query(_home(home), query)}


def _with_room(say: Say, home: Path, way: str, room_bytes: int, then: str, **arguments: Any) -> dict[str, Any]:
    """Another task on a disk that has only so much room."""
    fill(way, home.parent, room_bytes)
    return TASKS[then](say, home, **arguments)


def _look(_: Say, home: Path) -> dict[str, Any]:
    from support.checks import lake_contents

    lake_contents.report_ids(_home(home))
    return lake_contents.surroundings(_home(home))._asdict()


def _free(_: Say, home: Path) -> dict[str, Any]:
    free(home.parent)
    return {}


def _curate(_: Say, home: Path, die: str | None = None) -> dict[str, Any]:
    """``die`` is ``before`` or ``after`` the rename that makes a snapshot one."""
    from support.homes.pipeline import curate_all

    if die is not None:
        _die_around_rename(_home(home).snapshots, die)
    return {"digest": curate_all(_home(home)).digest}


def _die_around_rename(folder: Path, die: str) -> None:
    def dying(real: Callable[..., None]) -> Callable[..., None]:
        def rename(source: Any, target: Any, **arguments: Any) -> None:
            is_it = Path(target).parent == folder
            if is_it and die == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            real(source, target, **arguments)
            if is_it:
                os.kill(os.getpid(), signal.SIGKILL)

        return rename

    os.rename, os.replace = dying(os.rename), dying(os.replace)


def _home(root: Path) -> Any:
    from simic.runtime.home import Home

    return Home(root)


TASKS: dict[str, Callable[..., dict[str, Any]]] = {
    "curate": _curate,
    "free": _free,
    "ingest": _ingest,
    "look": _look,
    "put": _put,
    "sql": _sql,
    "with_room": _with_room,
}


def _live(task: str, home: str, pipe: int, **arguments: Any) -> None:
    def say(told: dict[str, Any]) -> None:
        os.write(pipe, json.dumps(told).encode() + b"\n")

    try:
        result = TASKS[task](say, Path(home), **arguments)
    except Exception as error:  # noqa: BLE001  which errors may come out is the test's to judge
        say({"error": type(error).__name__, "message": str(error), "result": {}})
    else:
        say({"error": None, "message": "", "result": result})


def _serve() -> None:
    import pandas  # noqa: F401  which pyarrow would load in every child
    import pyarrow.compute  # noqa: F401  # type: ignore[import-untyped]

    import support.homes.pipeline  # noqa: F401

    pipes: dict[int, int] = {}
    for line in sys.stdin:
        question = json.loads(line)
        if "wait" in question:
            pid = question["wait"]
            with os.fdopen(pipes.pop(pid), "rb") as pipe:
                told = [json.loads(whole) for whole in pipe.read().split(b"\n")[:-1]]
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            answer = {"status": status, "told": told}
        else:
            reading, writing = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(reading)
                code = 1
                try:
                    _live(**question, pipe=writing)
                    code = 0
                finally:
                    sys.stderr.flush()
                    os._exit(code)
            os.close(writing)
            pipes[pid] = reading
            answer = {"pid": pid}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
