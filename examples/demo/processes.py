"""The processes of the demonstration: verbs, a Redis server, and programs that may be killed and started again."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SIMIC = Path(sys.executable).with_name("simic")


class Failed(Exception):
    """A step did not do what it should."""


def verb(
    environment: Mapping[str, str], *words: str, codes: Sequence[int] = (0,), kill_after: float | None = None
) -> Any:
    """Return what a verb prints as JSON, with its exit code under ``code`` if it is an object.

    With ``kill_after`` it is killed after so many seconds, and given again.
    """
    command = [SIMIC, *words, "--json"]
    if kill_after is not None:
        first = _start(command, environment)
        try:
            first.communicate(timeout=kill_after)
        except subprocess.TimeoutExpired:
            kill(first)
            first.communicate()
    done = _start(command, environment)
    output, errors = done.communicate()
    if done.returncode not in codes:
        raise Failed(f"simic {' '.join(words)} ended with {done.returncode}: {errors.strip()[-2000:]}")
    found = json.loads(output)
    return {**found, "code": done.returncode} if isinstance(found, dict) else found


def _start(command: Sequence[str | Path], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603 - commands of this demonstration
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def kill(process: subprocess.Popen[Any]) -> None:
    """kill -9 of a process and what it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


class Program:
    """A program that runs on, and is started again after a kill."""

    def __init__(self, command: Sequence[str | Path], environment: Mapping[str, str], log: Path) -> None:
        self._command, self._environment, self._log = command, environment, log
        self.kills = 0
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - programs of this demonstration
                self._command, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )

    def kill_and_restart(self) -> None:
        kill(self._process)
        self._process.wait()
        self.kills += 1
        self.start()

    def check(self) -> None:
        """Raise Failed if it ended by itself."""
        if (code := self._process.poll()) is not None:
            raise Failed(f"{self._log.stem} ended with {code}: {self._log.read_text()[-2000:]}")

    def end(self) -> None:
        kill(self._process)
        self._process.wait()


class Killer(threading.Thread):
    """Kills one of the programs, chosen at random, ``times`` times or until it is told to stop.

    The number has a bound, because a program that is killed before it is ready gets nowhere.
    """

    def __init__(
        self, programs: Sequence[Program], chance: random.Random, pause: tuple[float, float], times: int
    ) -> None:
        super().__init__(daemon=True)
        self._programs, self._chance, self._pause, self._times = programs, chance, pause, times
        self._stopped = threading.Event()

    def run(self) -> None:
        for _ in range(self._times):
            if self._stopped.wait(self._chance.uniform(*self._pause)):
                return
            self._chance.choice(self._programs).kill_and_restart()

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def start_redis(folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Return a Redis server on a free port of this machine that keeps what it acknowledged, and its URL."""
    binary = shutil.which("redis-server")
    if binary is None:
        raise Failed("redis-server is missing (Debian: apt-get install redis-server)")
    folder.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        binary,
        "--bind",
        "127.0.0.1",
        "--port",
        str(port),
        "--dir",
        str(folder),
        "--save",
        "",
        "--appendonly",
        "yes",
    ]
    with (folder / "redis.log").open("ab") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603 - found by its name
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return server, f"redis://127.0.0.1:{port}/0"
        if server.poll() is not None:
            break
        time.sleep(0.1)
    server.kill()
    raise Failed(f"redis-server did not start: {(folder / 'redis.log').read_text()[-500:]}")


def install(site: Path, module: Path, families: Mapping[str, str]) -> None:
    """Make the families of a module known as an installed package does, in a folder for PYTHONPATH."""
    described = site / "demo_nets-1.0.dist-info"
    described.mkdir(parents=True)
    shutil.copy(module, site / "demo_nets.py")
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: demo-nets\nVersion: 1.0\n")
    points = "".join(f"{name} = demo_nets:{attribute}\n" for name, attribute in families.items())
    (described / "entry_points.txt").write_text(f"[simic.host_families]\n{points}")
