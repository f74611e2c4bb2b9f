"""The day of examples/demo, shrunken: two consumers under kill -9, a policy is published, and one comes back."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from support.builders.published_policies import Publisher, sealed_by_digest
from support.servers.forked_commands import run_command
from support.servers.redis_buses import stream_bus

EXAMPLE = Path(__file__).parents[2] / "examples" / "demo"
SERVER = """
import json, os, signal, sys
sys.path.insert(0, sys.argv[1])
import consumer, simic, torch
from simic.cli.main import app
import simic.api.grower, simic.api.subscriber
torch.set_num_threads(1)
for line in sys.stdin:
    command = json.loads(line)
    if command[0] == "kill":
        os.kill(int(command[1]), signal.SIGKILL)
        os.waitpid(int(command[1]), 0)
        print(0, flush=True)
        continue
    if (pid := os.fork()) == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if command[1].endswith("consumer.py"):
            consumer.Consumer(consumer.parse(command[2:])).run()
        else:
            app(command[1:])
        os._exit(0)
    print(pid, flush=True)
"""
"""Starts programs as children of one process, which has imported everything."""


class Forked:
    """What ``processes.Program`` is, as a child of the server."""

    server: subprocess.Popen[str]

    def __init__(self, command: Sequence[str], _environment: Mapping[str, str], _log: Path) -> None:
        self._command, self.kills = command, 0
        self.start()

    def start(self) -> None:
        self._pid = self._ask(*self._command)

    def end(self) -> None:
        self._ask("kill", str(self._pid))

    def kill_and_restart(self) -> None:
        self.end()
        self.kills += 1
        self.start()

    def _ask(self, *words: str) -> int:
        assert self.server.stdin is not None and self.server.stdout is not None
        self.server.stdin.write(json.dumps(words) + "\n")
        self.server.stdin.flush()
        return int(self.server.stdout.readline())


def forked_verb(environment: Mapping[str, str], *words: str, **_: Any) -> Any:
    done = run_command(*words, "--json", env=dict(environment))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A day whose champion was published without a judgement, with short trainings and many kills."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    for name in ("day", "processes"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    script = import_module("day")
    for name, value in {"verb": forked_verb, "Program": Forked, "TRAININGS": 1, "EPOCHS": 5, "INTERVAL_S": 0.1,
                        "KILL_PAUSE_S": (0.1, 1.5)}.items():  # fmt: skip
        monkeypatch.setattr(script, name, value)
    options = argparse.Namespace(kill=True, seed=int.from_bytes(os.urandom(2)))
    root = tmp_path / "day"
    root.mkdir()
    made = script.Day(root, options, lambda _: None)
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(EXAMPLE)], env=made.environment, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    ) as server:  # fmt: skip
        Forked.server = server
        try:
            yield made
        finally:
            made.close()
            os.killpg(server.pid, signal.SIGKILL)


def test_a_day_with_kill_9_loses_no_report_and_follows_only_what_was_published(day: Any) -> None:
    publisher = Publisher(day.home, bus=stream_bus(day.url))
    digests = [sealed_by_digest(publisher.home.policies, seed) for seed in range(3)]
    sealed_by_digest(publisher.home.policies, 7)  # is never published
    day.found.update(first=digests[0], second=digests[1])
    publisher.publish(1, digests[0])
    day.start_consumers()
    day.wait_for("first")
    day.check_reports("first")
    publisher.publish(2, digests[1])
    day.wait_for("second")
    day.check_reports("second")
    publisher.publish(1, digests[0])
    day.check_return(time.time())
    day.check_policies()
    assert day.found["reports_under_first"] == day.found["reports_under_second"] == 2 * 5
