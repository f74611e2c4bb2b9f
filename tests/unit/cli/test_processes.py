"""Services are recorded with an identity, and only those very processes are stopped."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from simic.cli.services.processes import (
    ServiceRecord,
    identity_of,
    is_alive,
    read_record,
    start,
    stop,
    was_started_elsewhere,
)

SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]


def _start(tmp_path: Path, code: str, name: str = "sleeper") -> ServiceRecord:
    tmp_path.mkdir(exist_ok=True)
    return start(tmp_path / ".run", name, [sys.executable, "-u", "-c", code], os.environ, tmp_path, None)


def _await_log(record: ServiceRecord, text: str) -> None:
    deadline = time.monotonic() + 10
    while text not in Path(record.log).read_text():
        assert time.monotonic() < deadline, Path(record.log).read_text()
        time.sleep(0.02)


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(SLEEPER)
    yield process
    process.kill()
    process.wait()


def test_a_started_service_is_found_again_and_stopped_with_its_children(tmp_path: Path) -> None:
    code = "import subprocess, sys, time; c = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
    record = _start(tmp_path, code + "print('child', c.pid); time.sleep(60)")
    _await_log(record, "child")
    child = int(Path(record.log).read_text().split()[1])
    assert read_record(tmp_path / ".run", "sleeper") == record
    assert identity_of(child) is not None

    stop(tmp_path / ".run", record)

    assert not is_alive(record)
    assert read_record(tmp_path / ".run", "sleeper") is None
    deadline = time.monotonic() + 5
    while identity_of(child) is not None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert identity_of(child) is None


def test_a_service_that_ignores_the_request_is_killed_after_the_timeout(tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf'); time.sleep(60)"
    record = _start(tmp_path, code)
    _await_log(record, "deaf")
    stop(tmp_path / ".run", record, timeout_s=0.3)
    assert not is_alive(record)


def test_a_group_is_not_signalled_once_its_leader_is_gone(
    tmp_path: Path, other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number may be another's by then."""
    signalled: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda _group, number: signalled.append(number))
    gone = ServiceRecord(name="sleeper", pid=other.pid, identity="boot:1", url=None, log="", command=[])
    (tmp_path / "sleeper.json").write_text(gone.model_dump_json())
    stop(tmp_path, gone)
    assert signalled == []
    assert not (tmp_path / "sleeper.json").exists()


def test_a_process_that_inherited_the_number_is_left_alone(tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
    directory = tmp_path / ".run"
    directory.mkdir()
    stale = ServiceRecord(name="sleeper", pid=other.pid, identity="boot:1", url=None, log="", command=[])
    (directory / "sleeper.json").write_text(stale.model_dump_json())
    assert read_record(directory, "sleeper") is None
    assert not (directory / "sleeper.json").exists()
    assert other.poll() is None


def test_a_torn_record_is_forgotten(tmp_path: Path) -> None:
    (tmp_path / "sleeper.json").write_text('{"name": "sle')
    assert read_record(tmp_path, "sleeper") is None
    assert not (tmp_path / "sleeper.json").exists()


def test_children_can_be_interrupted_although_we_ignore_interrupts(tmp_path: Path) -> None:
    code = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        record = _start(tmp_path, code)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    _await_log(record, "True")


def test_a_copied_home_neither_believes_nor_stops_the_services_of_the_original(tmp_path: Path) -> None:
    record = _start(tmp_path / "original", "import time; time.sleep(60)")
    original, copy = tmp_path / "original" / ".run", tmp_path / "copy" / ".run"
    try:
        shutil.copytree(original, copy)
        assert read_record(copy, "sleeper") is None
        assert not (copy / "sleeper.json").exists()
        assert is_alive(record)
        assert read_record(original, "sleeper") == record
    finally:
        stop(original, record)


def test_the_services_of_a_home_that_was_moved_are_found_to_be_stopped(tmp_path: Path) -> None:
    record = _start(tmp_path / "old", "import time; time.sleep(60)")
    (tmp_path / "old").rename(tmp_path / "new")
    directory = tmp_path / "new" / ".run"
    assert read_record(directory, "sleeper") == record
    assert was_started_elsewhere(directory, record)
    stop(directory, record)
    assert not is_alive(record)
    assert read_record(directory, "sleeper") is None
