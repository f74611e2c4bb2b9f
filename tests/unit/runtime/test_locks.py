"""One holder at a time, named to whoever must wait, and never a stale lock."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.faults.full_disks import read_only

from simic.contracts.errors import BusyError, TransientError
from simic.runtime.locks import exclusive, shared

HOLD = """
import sys, time
from pathlib import Path
from simic.runtime.locks import exclusive
with exclusive(Path(sys.argv[1]), "holding"):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path / "lock"], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_process_is_told_who_holds_it(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    with (
        pytest.raises(TransientError, match=f"the nightly run is busy: process {holder.pid} holds .*lock; try again"),
        exclusive(tmp_path / "lock", "the nightly run"),
    ):
        pytest.fail("two holders")


def test_a_killed_holder_leaves_nothing_behind(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait()
    with exclusive(tmp_path / "lock", "the nightly run"):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_waiting_ends_when_the_holder_does(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    entered = threading.Event()

    def hold() -> None:
        with exclusive(path, "first"):
            entered.set()
            time.sleep(0.3)

    thread = threading.Thread(target=hold)
    thread.start()
    assert entered.wait(10)
    with exclusive(path, "second", wait_s=30):
        assert not thread.is_alive() or path.read_text() == f"{os.getpid()}\n"
    thread.join()


def test_waiting_gives_up_at_its_deadline(tmp_path: Path) -> None:
    started = time.monotonic()
    with (
        exclusive(tmp_path / "lock", "first"),
        pytest.raises(TransientError, match=r"second is busy after waiting 0.2 s"),
        exclusive(tmp_path / "lock", "second", wait_s=0.2),
    ):
        pytest.fail("two holders")
    assert time.monotonic() - started >= 0.2


def test_an_exception_inside_releases_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="inside"), exclusive(tmp_path / "lock", "first"):
        raise ValueError("inside")
    assert (tmp_path / "lock").read_bytes() == b"", "it names no holder any more"
    with exclusive(tmp_path / "lock", "second"):
        pass


def test_directories_are_made_and_the_file_stays_empty(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "down" / "lock"
    with exclusive(path, "first"):
        pass
    assert path.read_bytes() == b""


@pytest.mark.parametrize("is_alive", [False, True], ids=["dead", "number taken by a live process"])
def test_a_killed_holder_is_not_called_the_holder(tmp_path: Path, is_alive: bool) -> None:
    """A killed holder leaves its number in the file, which another process can have, and sharers write none."""
    path = tmp_path / "lock"
    with subprocess.Popen(["true"]) as dead:
        dead.wait()
    path.write_text(f"{os.getppid() if is_alive else dead.pid}\n")
    with (
        shared(path, "first"),
        pytest.raises(BusyError, match="second is busy: another process holds"),
        exclusive(path, "second"),
    ):
        pytest.fail("not alone")


def test_a_number_that_no_process_can_have_is_not_called_the_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with exclusive(path, "first"):
        path.write_text("9" * 30)
        with pytest.raises(BusyError, match="second is busy: another process holds"), exclusive(path, "second"):
            pytest.fail("two holders")


def test_an_error_inside_is_not_hidden_by_one_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("os.ftruncate", refuse)
    with pytest.raises(ValueError, match="inside"), exclusive(tmp_path / "lock", "first"):
        raise ValueError("inside")
    with exclusive(tmp_path / "lock", "second"):
        pass


SHARE = """
import sys
from pathlib import Path
from simic.runtime.locks import shared
with shared(Path(sys.argv[1]), "reading"):
    print("shared")
"""


def test_who_may_only_read_the_file_shares_it_and_waits_for_its_holder(tmp_path: Path) -> None:
    """An analyst's read-only view of a home whose owner writes."""
    path = tmp_path / "home" / "lock"
    path.parent.mkdir()
    command = read_only([sys.executable, "-c", SHARE, str(path)], path.parent)
    with exclusive(path, "writing"):
        waiting = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"reading is busy: process {os.getpid()} holds {path}" in waiting.stderr
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "shared\n"
    path.unlink()
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"cannot lock {path}: " in refused.stderr and not path.exists()


def test_holders_that_share_exclude_only_who_wants_it_alone(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with (
        shared(path, "first"),
        shared(path, "second"),
        pytest.raises(TransientError, match="third is busy: another process"),
        exclusive(path, "third"),
    ):
        pytest.fail("not alone")
    with exclusive(path, "fourth"), pytest.raises(TransientError, match="fifth is busy"), shared(path, "fifth"):
        pytest.fail("two holders")
