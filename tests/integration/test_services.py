"""`simic up`, a scheduled run, `simic down`: real servers on free ports, from nothing to nothing."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.builders.profiles import write_tiny_profile
from support.faults.http_attacks import ATTACKERS, basic, create_deployment, request, secrets_in_sight, upgrade

from simic.cli.services.http import PrefectApi
from simic.cli.services.processes import identity_of
from simic.cli.services.stack import POOL

SIMIC = Path(sys.executable).with_name("simic")
PREFECT = Path(sys.executable).with_name("prefect")
CANCELLED = {"flow_runs": {"state": {"type": {"any_": ["CANCELLED"]}}}}
SHORT = {"horizon": 6, "min_experiences": 20}
STAGES = ("ingest", "curate", "train", "validate", "decide", "record")


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


class Stack:
    """The services of one home."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environment = {**os.environ, "SIMIC_HOME": str(root)}
        self.environment.pop("PREFECT_HOME", None)

    def simic(self, *arguments: str) -> Any:
        done = subprocess.run(
            [SIMIC, *arguments, "--json"], env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def prefect(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A plain prefect command with what `simic up` says to export."""
        own = {"PREFECT_HOME": str(self.root / ".prefect")}
        own["PREFECT_PROFILES_PATH"] = str(self.root / ".prefect" / "profiles.toml")
        return subprocess.run([PREFECT, *arguments], env=self.environment | own, capture_output=True, text=True)

    def ask(self, path: str, question: object) -> Any:
        return PrefectApi(self.api, self.login).post(path, question)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([SIMIC, *arguments], env=self.environment, capture_output=True, text=True, check=False)

    @property
    def login(self) -> str:
        return (self.root / ".prefect" / "login").read_text().strip()

    @property
    def mlflow(self) -> str:
        return str(json.loads((self.root / ".run" / "mlflow-ui.json").read_text())["url"])

    @property
    def api(self) -> str:
        record = json.loads((self.root / ".run" / "prefect-server.json").read_text())
        return f"{record['url']}/api"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stack, list[dict[str, Any]]]]:
    stack = Stack(tmp_path_factory.mktemp("services"))
    try:
        yield stack, stack.simic("up", "--port", _free_port(), "--mlflow-port", _free_port())
    finally:
        stack.simic("down")


def test_up_is_idempotent_and_deploys_what_the_schedule_says(stack: tuple[Stack, list[dict[str, Any]]]) -> None:
    services, records = stack
    assert {record["name"] for record in records} == {"prefect-server", "prefect-worker", "mlflow-ui"}
    assert all(record["url"] is None or record["url"].startswith("http://127.0.0.1:") for record in records)
    assert services.simic("up") == records
    status, page, _ = request(f"{services.api.removesuffix('/api')}/", {})
    assert (status, b"<html" in page) == (200, True)
    found = {deployment["name"]: deployment for deployment in services.ask("deployments/filter", {})}
    assert {"nightly", "offline"} <= set(found)
    (schedule,) = found["nightly"]["schedules"]
    assert (schedule["schedule"]["cron"], schedule["schedule"]["timezone"]) == ("0 3 * * *", "UTC")
    assert found["offline"]["schedules"] == []
    assert {found[name]["global_concurrency_limit"]["limit"] for name in ("nightly", "offline")} == {1}


def test_a_deployment_completes_on_reports_already_on_the_bus(
    stack: tuple[Stack, list[dict[str, Any]]], tmp_path: Path
) -> None:
    """The reports come from a deployment watched by Prefect's own command, the verdict from `simic nightly`."""
    services, _ = stack
    profile = str(write_tiny_profile(tmp_path / "tiny.toml", rounds=0, **SHORT))
    without_own = str(write_tiny_profile(tmp_path / "offline.toml", rounds=0, episodes=0, **SHORT))
    given = ("--param", f'profile="{profile}"', "--param", "episodes=20")
    collected = services.prefect("deployment", "run", "collect/collect", *given, "--watch")
    assert collected.returncode == 0, collected.stdout + collected.stderr
    assert "prefect.flow-run.Running" in collected.stdout  # told over a WebSocket

    done = services.run("nightly", "--deployment", "offline", "--profile", without_own, "--json")
    assert done.returncode == 3, done.stderr
    found = json.loads(done.stdout)
    assert (found["state"], found["state_name"], found["deployment"]) == ("COMPLETED", "Rejected", "simic/offline")
    assert re.search(r"return_over_\w+ is ", found["message"])
    assert [f"{name}-0: " in done.stderr for name in STAGES] == [True] * len(STAGES)
    own = {"flow_runs": {"id": {"any_": [found["id"]]}}}
    stages = {run["name"]: run["state"]["type"] for run in services.ask("task_runs/filter", own)}
    assert stages == dict.fromkeys((f"{name}-0" for name in STAGES), "COMPLETED")
    assert {artifact["key"] for artifact in services.ask("artifacts/filter", own)} >= {"proof", "gate"}


def test_a_run_that_fails_is_told_by_both_commands(stack: tuple[Stack, list[dict[str, Any]]], tmp_path: Path) -> None:
    services, _ = stack
    missing = str(tmp_path / "missing.toml")
    plain = services.prefect("deployment", "run", "simic/nightly", "--param", f'profile="{missing}"', "--watch")
    assert plain.returncode == 1, plain.stdout + plain.stderr
    failed = services.run("nightly", "--profile", missing)
    assert failed.returncode == 1
    assert "missing.toml" in failed.stderr
    unknown = services.run("nightly", "--deployment", "monthly")
    assert unknown.returncode == 2
    assert "simic/monthly" in unknown.stderr


def _scheduled(services: Stack) -> list[dict[str, Any]]:
    """Runs that would start by themselves, other than those of the nightly schedule."""
    kinds = {"flow_runs": {"state": {"type": {"any_": ["SCHEDULED", "PENDING", "RUNNING"]}}}}
    return [run for run in services.ask("flow_runs/filter", kinds) if not run["auto_scheduled"]]


def test_no_attacker_makes_the_worker_run_a_command(stack: tuple[Stack, list[dict[str, Any]]], tmp_path: Path) -> None:
    services, _ = stack
    for number, (attacker, (headers, is_logged_in)) in enumerate(ATTACKERS.items()):
        sent = headers | (basic(services.login) if is_logged_in else {})
        statuses = create_deployment(services.api, sent, f"touch {tmp_path}/attack-{number}", POOL)
        assert set(statuses) <= {401, 403}, attacker
        assert upgrade(f"{services.api}/events/in", headers) == (
            403 if "Origin" in headers or "Host" in headers else 101
        )
    assert services.ask("deployments/filter", {"flows": {"name": {"any_": ["evil"]}}}) == []

    # The same three requests by the owner do run the command, so the worker would have run those of the attackers.
    client = "0" * 32
    token = json.loads(request(f"{services.api}/csrf-token?client={client}", basic(services.login))[1])["token"]
    owner = basic(services.login) | {"Prefect-Csrf-Token": token, "Prefect-Csrf-Client": client}
    assert set(create_deployment(services.api, owner, f"touch {tmp_path}/owner", POOL)) <= {200, 201}
    deadline = time.monotonic() + 60
    while _scheduled(services) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert [path.name for path in tmp_path.iterdir()] == ["owner"]


def test_no_page_is_told_that_it_may_call_the_api(stack: tuple[Stack, list[dict[str, Any]]]) -> None:
    services, _ = stack
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    for origin in ("http://evil.example", "null", "http://127.0.0.1:9"):
        status, _, headers = request(f"{services.api}/flows/", asked | {"Origin": origin}, method="OPTIONS")
        assert status == 403
        assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize("attacker", ATTACKERS)
def test_mlflow_refuses_who_is_not_logged_in_or_comes_from_elsewhere(
    stack: tuple[Stack, list[dict[str, Any]]], attacker: str
) -> None:
    services, _ = stack
    headers, is_logged_in = ATTACKERS[attacker]
    if is_logged_in and not headers:
        headers = {"Origin": "http://localhost.evil.example"}  # its forms are recognised by their Origin alone
    sent = headers | (basic(services.login) if is_logged_in else {})
    created = request(f"{services.mlflow}/api/2.0/mlflow/registered-models/create", sent, {"name": "evil"})
    assert created[0] in (401, 403)
    for path in ("/", "/health", "/version", "/api/2.0/mlflow/experiments/get?experiment_id=1", "/get-artifact"):
        assert request(f"{services.mlflow}{path}", sent)[0] in (401, 403), path
    assert request(services.mlflow, basic(services.login))[0] == 200


def test_the_login_is_named_and_never_shown(stack: tuple[Stack, list[dict[str, Any]]]) -> None:
    services, records = stack
    password = services.login.partition(":")[2]
    assert secrets_in_sight(password, services.root) == []
    holders = {str(path.relative_to(services.root)) for path in services.root.rglob("*") if path.is_file()
               and password.encode() in path.read_bytes()}  # fmt: skip
    assert holders == {".prefect/login", ".prefect/profiles.toml"}
    shown = services.run("up")
    assert shown.returncode == 0
    assert str(services.root / ".prefect" / "login") in shown.stdout
    assert password not in shown.stdout + shown.stderr
    assert {record["login"] for record in records} == {None, str(services.root / ".prefect" / "login")}
    modes = {path.name: path.stat().st_mode & 0o777 for path in (services.root / ".run").iterdir()}
    assert set(modes.values()) == {0o600}, modes


def test_a_run_that_no_worker_begins_is_cancelled_and_not_left_for_later(
    stack: tuple[Stack, list[dict[str, Any]]],
) -> None:
    """The worker stands still, so it takes no run; then it dies."""
    services, records = stack
    worker = next(record["pid"] for record in records if record["name"] == "prefect-worker")
    before = len(services.ask("flow_runs/filter", CANCELLED))
    os.kill(worker, signal.SIGSTOP)
    command = [SIMIC, "nightly", "--deployment", "offline"]
    with subprocess.Popen(command, env=services.environment, stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stderr is not None
        assert "simic/offline: run " in waiting.stderr.readline()
        os.kill(worker, signal.SIGKILL)
        assert "so the run is cancelled" in waiting.stderr.read()
    assert waiting.returncode == 4
    assert len(services.ask("flow_runs/filter", CANCELLED)) == before + 1
    assert _scheduled(services) == []
    again = services.run("nightly")
    assert again.returncode == 4
    assert "the worker is not running" in again.stderr


def test_up_replaces_servers_of_an_earlier_version_which_ask_for_no_login(
    stack: tuple[Stack, list[dict[str, Any]]],
) -> None:
    """The worker is down by now, so this also brings it back."""
    services, records = stack
    record = services.root / ".run" / "prefect-server.json"
    known = json.loads(record.read_text())
    record.write_text(json.dumps(known | {"command": ["python", "-m", "prefect", "server", "start"]}))
    port, mlflow_port = (str(urlsplit(url).port) for url in (services.api, services.mlflow))
    renewed = services.simic("up", "--port", port, "--mlflow-port", mlflow_port)
    assert {one["name"] for one in renewed} == {one["name"] for one in records}
    assert not {one["pid"] for one in renewed} & {one["pid"] for one in records}
    assert all(identity_of(one["pid"]) is None for one in records)
    records[:] = renewed


def test_down_stops_exactly_these(stack: tuple[Stack, list[dict[str, Any]]]) -> None:
    services, records = stack
    stopped = services.simic("down")
    assert sorted(record["pid"] for record in stopped) == sorted(record["pid"] for record in records)
    assert all(identity_of(record["pid"]) is None for record in records)
    assert services.simic("down") == []


def test_without_services_nothing_waits_and_nothing_is_left_to_start_later(
    stack: tuple[Stack, list[dict[str, Any]]],
) -> None:
    services, _ = stack
    assert services.simic("down") == []
    database = services.root / ".prefect" / "prefect.db"
    count = "SELECT count(*) FROM flow_run"
    with contextlib.closing(sqlite3.connect(database)) as connection:
        before = connection.execute(count).fetchone()
    verb = services.run("nightly")
    assert verb.returncode == 4
    assert "simic up" in verb.stderr
    plain = services.prefect("deployment", "run", "simic/nightly", "--watch")
    assert plain.returncode == 1
    assert "No Prefect API URL provided" in plain.stdout + plain.stderr
    with contextlib.closing(sqlite3.connect(database)) as connection:
        assert connection.execute(count).fetchone() == before
