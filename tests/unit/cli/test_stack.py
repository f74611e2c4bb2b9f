"""Bringing services up: who holds the port, what counts as ready, and what a failure leaves."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from simic.cli.services import stack
from simic.cli.services.environment import prefect_profiles, write_prefect_profile
from simic.cli.services.login import new_login
from simic.cli.services.processes import ServiceRecord, read_record, start, stop
from simic.contracts.errors import TransientError
from simic.runtime.home import Home


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((stack.HOST, 0))
        return int(probe.getsockname()[1])


def _can_listen(port: int) -> bool:
    """Whether another program gets the port now; a plain bind succeeds there once nobody holds it."""
    with contextlib.suppress(OSError), socket.create_server((stack.HOST, port)):
        return True
    return False


def _bring_up(home: Home, service: str, port: int, told: list[bool]) -> None:
    """Up to the start of the process, which takes seconds until it would bind by itself."""
    verb = {stack.MLFLOW: stack._mlflow_up, stack.SERVER: stack._server_up}[service]
    verb(home, port, new_login(), lambda _: told.append(_can_listen(port)))  # type: ignore[operator]


@pytest.mark.parametrize("service", [stack.MLFLOW, stack.SERVER])
def test_from_the_check_of_the_port_until_the_server_answers_nobody_else_gets_it(
    home: Path, service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, port, told = Home(home), _free_port(), list[bool]()
    monkeypatch.setattr(stack, "_await", lambda *_: told.append(_can_listen(port)))
    own.create()
    try:
        _bring_up(own, service, port, told)
        told.append(_can_listen(port))
    finally:
        if (record := read_record(stack.run_directory(own), service)) is not None:
            stop(stack.run_directory(own), record)
    assert record is not None
    assert record.url == f"http://{stack.HOST}:{port}"
    assert len(told) >= 2
    assert not any(told)
    assert _can_listen(port)


def test_a_port_of_another_program_is_refused_and_the_option_is_named(home: Path) -> None:
    with socket.create_server((stack.HOST, 0)) as other:
        port = int(other.getsockname()[1])
        with pytest.raises(TransientError, match=rf"port {port} is in use .*--mlflow-port"):
            stack._mlflow_up(Home(home), port, new_login(), lambda _: None)


def test_an_answer_after_the_end_of_the_process_is_not_the_service(tmp_path: Path) -> None:
    log = tmp_path / "gone.log"
    log.write_text("the reason")
    gone = ServiceRecord(name="gone", pid=os.getpid(), identity="boot:1", url=None, log=str(log), command=[])
    asked: list[str] = []
    with pytest.raises(TransientError, match="the reason"):
        stack._await(gone, lambda: asked.append("the stranger, with the login") is None)
    assert asked == []


def test_a_failed_up_leaves_no_server_and_no_login_in_the_profile(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Home(home)
    own.create()

    def server_up(home: Home, port: int, login: str, _: object) -> str:
        command = [sys.executable, "-c", "import time; time.sleep(60)"]
        start(stack.run_directory(home), stack.SERVER, command, os.environ, home.root, f"http://{stack.HOST}:{port}")
        write_prefect_profile(home, f"http://{stack.HOST}:{port}/api", login)
        return ""

    def worker_up(*_: object) -> None:
        raise TransientError("no worker")

    monkeypatch.setattr(stack, "_mlflow_up", lambda *_: None)
    monkeypatch.setattr(stack, "_server_up", server_up)
    monkeypatch.setattr(stack, "_worker_up", worker_up)
    with pytest.raises(TransientError, match="no worker"):
        stack.up(own, 4200, 5000, lambda _: None)
    assert stack.running(own) == []
    found = tomllib.loads(prefect_profiles(own).read_text())
    assert found["profiles"][found["active"]] == {"PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false"}


def test_what_the_search_for_crashed_runs_found_is_shown(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, told = Home(home), list[str]()
    own.create()
    found = ["run a (1) of the flow simic was dead and is now called Crashed", "no run of the flow collect is marked"]
    script = home / "search.py"
    script.write_text("".join(f"print({line!r})\n" for line in found))

    def short(command: list[str], **settings: Any) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(script)] if "flows.crashed_runs" in command else ["true"]
        return subprocess_run(command, **settings)

    subprocess_run = subprocess.run
    monkeypatch.setattr("subprocess.run", short)
    monkeypatch.setattr(stack, "start", lambda *_: None)
    monkeypatch.setattr(stack, "project_root", lambda: home)
    stack._worker_up(own, "", new_login(), told.append)
    assert told[1:] == [*found, "starting the worker"]
