"""Which services there are, in which order they come up and go down."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from simic.cli.services.environment import (
    answers,
    ask,
    mlflow_environment,
    prefect_environment,
    with_signing_key,
    write_prefect_profile,
)
from simic.cli.services.processes import ServiceRecord, is_alive, read_record, start, stop
from simic.contracts.errors import ConfigError, SimicError, TransientError

if TYPE_CHECKING:
    from simic.runtime.settings import Home

__all__ = [
    "HOST",
    "POOL",
    "SERVICES",
    "create_prefect_database",
    "down",
    "healthy_api",
    "mlflow_command",
    "running",
    "up",
]

HOST = "127.0.0.1"
POOL = "simic-local"
SERVER, WORKER, MLFLOW = "prefect-server", "prefect-worker", "mlflow-ui"
SERVICES = (SERVER, WORKER, MLFLOW)
START_TIMEOUT_S = 120.0
COMMAND_TIMEOUT_S = 180.0
POLL_S = 0.25
LOG_TAIL_CHARACTERS = 2000

Say = Callable[[str], None]


def _directory(home: Home) -> Path:
    return home.root / ".run"


def project_root() -> Path:
    """Where ``flows`` and ``prefect.yaml`` lie."""
    spec = importlib.util.find_spec("flows")
    root = Path(spec.origin).parents[1] if spec is not None and spec.origin else None
    if root is None or not (root / "prefect.yaml").is_file():
        raise ConfigError("no prefect.yaml beside the package `flows`: install Simic with `pip install -e .`")
    return root


def running(home: Home) -> list[ServiceRecord]:
    """Live services of this home."""
    found = (read_record(_directory(home), name) for name in SERVICES)
    return [record for record in found if record is not None]


def healthy_api(home: Home) -> str | None:
    """Address of our own Prefect API, if it is up and well."""
    record = read_record(_directory(home), SERVER)
    if record is None or record.url is None or not answers(f"{record.url}/api/health"):
        return None
    return f"{record.url}/api"


def _prefect(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "prefect", *arguments]


def mlflow_command(home: Home, port: int) -> list[str]:
    """One worker: four cost 2.5 GB and start three times slower."""
    store = ["--backend-store-uri", home.tracking_uri, "--default-artifact-root", str(home.artifacts)]
    return [sys.executable, "-m", "mlflow", "ui", *store, "--host", HOST, "--port", str(port), "--workers", "1"]


def _run(what: str, command: list[str], environment: dict[str, str], cwd: Path) -> None:
    """A short command that must succeed."""
    try:
        result = subprocess.run(  # noqa: S603 - our own commands
            command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise TransientError(f"{what} took longer than {COMMAND_TIMEOUT_S:.0f} s: {' '.join(command)}") from error
    if result.returncode != 0:
        tail = (result.stdout + result.stderr)[-LOG_TAIL_CHARACTERS:]
        raise SimicError(f"{what} failed with exit status {result.returncode}: {tail.strip()}")


def create_prefect_database(home: Home) -> None:
    """Create or migrate once: several first users at the same time would break it. Call under a lock."""
    home.prefect.mkdir(parents=True, exist_ok=True)
    environment = prefect_environment(home, None)
    _run("creating Prefect's database", _prefect("server", "database", "upgrade", "--yes"), environment, home.root)


def _require_free(port: int, option: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise TransientError(f"port {port} is in use by another program; choose one with {option}") from error


def _await(record: ServiceRecord, is_ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if is_ready():
            return
        if not is_alive(record):
            break
        time.sleep(POLL_S)
    tail = Path(record.log).read_text(errors="replace")[-LOG_TAIL_CHARACTERS:]
    raise TransientError(f"{record.name} did not come up; end of {record.log}:\n{tail}")


def up(home: Home, port: int, mlflow_port: int, say: Say) -> list[ServiceRecord]:
    """Bring up what does not run yet; what was started is taken down again if a part fails.

    The pool comes before the deployments, which name it, and the worker last, when what dead processes left
    behind has been tidied.
    """
    before = {record.name for record in running(home)}
    try:
        _mlflow_up(home, mlflow_port, say)
        api = _server_up(home, port, say)
        if WORKER not in before:
            _worker_up(home, api, say)
        _await_all(home, api)
    except BaseException:
        for record in running(home):
            if record.name not in before:
                stop(_directory(home), record)
        raise
    return running(home)


def _mlflow_up(home: Home, port: int, say: Say) -> None:
    if read_record(_directory(home), MLFLOW) is not None:
        return
    _require_free(port, "--mlflow-port")
    say(f"starting the MLflow UI on port {port}")
    url = f"http://{HOST}:{port}"
    start(_directory(home), MLFLOW, mlflow_command(home, port), mlflow_environment(home), home.root, url)


def _server_up(home: Home, port: int, say: Say) -> str:
    record = read_record(_directory(home), SERVER)
    if record is None:
        _require_free(port, "--port")
        say(f"starting the Prefect server on port {port}")
        url = f"http://{HOST}:{port}"
        environment = prefect_environment(home, f"{url}/api")
        command = _prefect("server", "start", "--host", HOST, "--port", str(port))
        record = start(_directory(home), SERVER, command, environment, home.root, url)
    address = f"{record.url}/api"
    _await(record, lambda: answers(f"{address}/health"))
    write_prefect_profile(home, address)
    return address


def _worker_up(home: Home, api: str, say: Say) -> None:
    environment, root = prefect_environment(home, api), project_root()
    say(f"creating the work pool {POOL} and deploying prefect.yaml")
    pool = _prefect("work-pool", "create", POOL, "--type", "process", "--overwrite")
    _run("creating the work pool", pool, environment, root)
    _run("deploying prefect.yaml", _prefect("--no-prompt", "deploy", "--all"), environment, root)
    _run("tidying what dead processes left", [sys.executable, "-m", "flows.doctor"], environment, root)
    say("starting the worker")
    flags = (
        "--type",
        "process",
        "--limit",
        "1",
        "--install-policy",
        "never",
        "--name",
        f"simic-{uuid.uuid4().hex[:8]}",
    )
    command = _prefect("worker", "start", "--pool", POOL, *flags)
    start(_directory(home), WORKER, command, with_signing_key(environment), root, None)


def _await_all(home: Home, api: str) -> None:
    """The MLflow UI answers and the worker has signed on."""
    records = {record.name: record for record in running(home)}
    for name in SERVICES:
        if name not in records:
            raise TransientError(f"{name} ended right after the start; see {_directory(home) / f'{name}.log'}")
    _await(records[MLFLOW], lambda: answers(f"{records[MLFLOW].url}/health"))
    _await(records[WORKER], lambda: _has_signed_on(records[WORKER], api))


def _has_signed_on(worker: ServiceRecord, api: str) -> bool:
    """By its own name: the server remembers earlier workers too."""
    known = ask(f"{api}/work_pools/{POOL}/workers/filter", {}) or []
    return any(found["name"] == worker.command[-1] for found in known)


def down(home: Home, say: Say) -> list[ServiceRecord]:
    """Stop exactly the services recorded in this home: the worker first, the server last."""
    records = {record.name: record for record in running(home)}
    stopped = [records[name] for name in (WORKER, MLFLOW, SERVER) if name in records]
    for record in stopped:
        say(f"stopping {record.name} (process {record.pid})")
        stop(_directory(home), record)
    write_prefect_profile(home, None)
    return stopped


def environment_for_flows(home: Home) -> dict[str, str]:
    """What an in-process run needs, on top of the present environment."""
    return with_signing_key(prefect_environment(home, healthy_api(home)))
