"""`simic up`, a scheduled run, `simic down`: real servers on free ports, from nothing to nothing."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.tiny import write_tiny_profile

from simic.cli.services.environment import ask
from simic.cli.services.processes import identity_of

SIMIC = Path(sys.executable).with_name("simic")
PREFECT = Path(sys.executable).with_name("prefect")
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
        return ask(f"{self.api}/{path}", question)

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
    found = {deployment["name"]: deployment for deployment in services.ask("deployments/filter", {})}
    assert {"nightly", "offline"} <= set(found)
    (schedule,) = found["nightly"]["schedules"]
    assert (schedule["schedule"]["cron"], schedule["schedule"]["timezone"]) == ("0 3 * * *", "UTC")
    assert found["offline"]["schedules"] == []
    assert {found[name]["global_concurrency_limit"]["limit"] for name in ("nightly", "offline")} == {1}


def test_a_deployment_completes_on_reports_already_on_the_bus(
    stack: tuple[Stack, list[dict[str, Any]]], tmp_path: Path
) -> None:
    services, _ = stack
    profile = str(write_tiny_profile(tmp_path / "tiny.toml", rounds=0))
    without_own = str(write_tiny_profile(tmp_path / "offline.toml", rounds=0, episodes=0))
    services.simic("collect", "--profile", profile)
    done = services.prefect("deployment", "run", "simic/offline", "--param", f'profile="{without_own}"', "--watch")
    assert done.returncode == 0, done.stdout + done.stderr

    (flow_run,) = services.ask("flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": ["COMPLETED"]}}}})
    assert flow_run["state"]["name"] == "Rejected"
    assert "episodes is 10, needs >= 150" in flow_run["state"]["message"]
    own = {"flow_runs": {"id": {"any_": [flow_run["id"]]}}}
    stages = {run["name"]: run["state"]["type"] for run in services.ask("task_runs/filter", own)}
    assert stages == dict.fromkeys((f"{name}-0" for name in STAGES), "COMPLETED")
    assert {artifact["key"] for artifact in services.ask("artifacts/filter", own)} >= {"proof", "gate"}


def test_down_stops_exactly_these(stack: tuple[Stack, list[dict[str, Any]]]) -> None:
    services, records = stack
    stopped = services.simic("down")
    assert sorted(record["pid"] for record in stopped) == sorted(record["pid"] for record in records)
    assert all(identity_of(record["pid"]) is None for record in records)
    assert services.simic("down") == []
