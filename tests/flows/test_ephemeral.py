"""No server of ours outlives us."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simic.cli.services.processes import identity_of

OWNER = """
import subprocess, sys, time
from flows.ephemeral import end_with_us
server = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
end_with_us(server.pid)
print(server.pid, flush=True)
if sys.argv[1] == "wait":
    time.sleep(60)
server.kill()
server.wait()
print("left alone", flush=True)
"""


def _gone(pid: int) -> bool:
    deadline = time.monotonic() + 5
    while identity_of(pid) is not None and time.monotonic() < deadline:
        time.sleep(0.02)
    return identity_of(pid) is None


def _owner(how: str) -> subprocess.Popen[str]:
    root = str(Path(__file__).parents[2])
    return subprocess.Popen([sys.executable, "-c", OWNER, how], stdout=subprocess.PIPE, text=True, cwd=root)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_ends_with_its_owner_even_if_that_is_killed(number: signal.Signals) -> None:
    owner = _owner("wait")
    assert owner.stdout is not None
    server = int(owner.stdout.readline())
    assert identity_of(server) is not None
    owner.send_signal(number)
    owner.communicate()
    assert _gone(server)


def test_an_owner_that_ends_in_peace_leaves_no_watcher() -> None:
    owner = _owner("go")
    output, _ = owner.communicate(timeout=60)
    assert owner.returncode == 0
    assert output.endswith("left alone\n")
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert f"kill -TERM $0 2>/dev/null {output.split()[0]}" not in found
