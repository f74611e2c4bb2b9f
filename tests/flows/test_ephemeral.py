"""The server of `simic run`: guarded like that of `simic up`, and gone with the command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from support.faults.http_attacks import ATTACKERS, basic, create_deployment, request, secrets_in_sight, upgrade

from simic.cli.services.ephemeral import EphemeralServer
from simic.cli.services.processes import identity_of
from simic.cli.services.stack import create_prefect_database
from simic.runtime.home import Home

OWNER = """
import sys, time
from pathlib import Path
from simic.cli.services.ephemeral import EphemeralServer
from simic.runtime.home import Home
server = EphemeralServer(Home(Path(sys.argv[1])))
print(server._process.pid, flush=True)
if sys.argv[2] == "wait":
    time.sleep(60)
server.await_ready()
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with Prefect's database, which takes seconds to make."""
    home = Home(tmp_path_factory.mktemp("served"))
    create_prefect_database(home)
    return home


@pytest.fixture(scope="module")
def server(served: Home) -> Iterator[EphemeralServer]:
    server = EphemeralServer(served)
    server.await_ready()
    yield server
    server.stop()


@pytest.mark.parametrize("attacker", ATTACKERS)
def test_attackers_are_refused_by_the_server_of_a_run(server: EphemeralServer, attacker: str) -> None:
    headers, is_logged_in = ATTACKERS[attacker]
    sent = headers | (basic(server.login) if is_logged_in else {})
    assert set(create_deployment(server.api_url, sent, "true", "any")) <= {401, 403}


@pytest.mark.parametrize("attacker", [name for name, (headers, _) in ATTACKERS.items() if "Origin" in headers])
def test_a_page_of_another_origin_opens_no_websocket(server: EphemeralServer, attacker: str) -> None:
    own = server.api_url.removesuffix("/api")
    assert upgrade(f"{server.api_url}/events/out", {"Origin": own}) == 101
    assert upgrade(f"{server.api_url}/events/out", ATTACKERS[attacker][0]) == 403


def test_the_login_of_a_run_is_in_nobodys_sight(server: EphemeralServer, served: Home) -> None:
    assert request(f"{server.api_url}/version", basic(server.login))[0] == 200
    password = server.login.partition(":")[2]
    assert secrets_in_sight(password, served.root) == []
    assert not [path for path in served.root.rglob("*") if path.is_file() and password.encode() in path.read_bytes()]


def _gone(pid: int) -> bool:
    deadline = time.monotonic() + 30
    while identity_of(pid) is not None and time.monotonic() < deadline:
        time.sleep(0.02)
    return identity_of(pid) is None


def _owner(home: Home, how: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", OWNER, str(home.root), how], stdout=subprocess.PIPE, text=True, env=os.environ
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_ends_with_its_owner_even_if_that_is_killed(served: Home, number: signal.Signals) -> None:
    owner = _owner(served, "wait")
    assert owner.stdout is not None
    server = int(owner.stdout.readline())
    assert identity_of(server) is not None
    owner.send_signal(number)
    owner.communicate()
    assert _gone(server)


def test_an_owner_that_ends_in_peace_takes_its_server_along(served: Home) -> None:
    owner = _owner(served, "go")
    output, _ = owner.communicate(timeout=120)
    assert owner.returncode == 0
    assert identity_of(int(output)) is None
