"""The services of a home, and the order in which they start and stop."""

from __future__ import annotations

import errno
import importlib.util
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from simic.cli.services.environment import (
    guarded,
    mlflow_environment,
    prefect_environment,
    with_signing_key,
    write_prefect_profile,
)
from simic.cli.services.http import PrefectApi, answers, get_json
from simic.cli.services.login import load_login
from simic.cli.services.processes import (
    ServiceRecord,
    is_alive,
    read_record,
    start,
    stop,
    was_started_elsewhere,
)
from simic.contracts.errors import ConfigError, SimicError, TransientError
from simic.registry.experiment_page import runs_page
from simic.registry.mlflow_store import EXPERIMENT
from simic.runtime.home import MLFLOW_URL_VARIABLE, PREFECT_URL_VARIABLE, Home
from simic.runtime.private_files import private_directory

__all__ = [
    "HOST",
    "MLFLOW",
    "POOL",
    "SERVICES",
    "WORKER",
    "create_prefect_database",
    "down",
    "guarded_command",
    "healthy_api",
    "listen",
    "mlflow_page",
    "run_directory",
    "running",
    "ui_links",
    "up",
]

HOST = "127.0.0.1"
POOL = "simic-local"
SERVER, WORKER, MLFLOW = "prefect-server", "prefect-worker", "mlflow-ui"
SERVICES = (SERVER, WORKER, MLFLOW)
GUARDED = {SERVER: "flows.server", MLFLOW: "simic.registry.ui"}
"""Modules that start a service behind a guard; a service started otherwise has no guard."""
START_TIMEOUT_S = 120.0
COMMAND_TIMEOUT_S = 900.0
POLL_S = 0.25
BACKLOG = 128
LOG_TAIL_CHARACTERS = 2000

Say = Callable[[str], None]


def run_directory(home: Home) -> Path:
    """Return the folder of records and logs of this home's services."""
    return home.root / ".run"


def project_root() -> Path:
    """Return the folder of ``flows`` and ``prefect.yaml``."""
    spec = importlib.util.find_spec("flows")
    root = Path(spec.origin).parents[1] if spec is not None and spec.origin else None
    if root is None or not (root / "prefect.yaml").is_file():
        raise ConfigError("no prefect.yaml beside the package `flows`: install Simic with `pip install -e .`")
    return root


def running(home: Home) -> list[ServiceRecord]:
    """Return the live services of this home."""
    records = (read_record(run_directory(home), name) for name in SERVICES)
    return [record for record in records if record is not None]


def healthy_api(home: Home) -> str | None:
    """Return the address of this home's Prefect API, or None unless it answers."""
    record = read_record(run_directory(home), SERVER)
    if record is None or record.url is None or not answers(f"{record.url}/api/health"):
        return None
    return f"{record.url}/api"


def _prefect(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "prefect", *arguments]


def guarded_command(name: str, listener: socket.socket) -> list[str]:
    """Return the command of a server that inherits ``listener``; the caller passes its descriptor on.

    MLflow's UI is one process; `mlflow ui` takes four workers, 2.5 GB and three times as long to start.
    """
    return [sys.executable, "-m", GUARDED[name], "--descriptor", str(listener.fileno())]


def listen(port: int, option: str = "--port") -> socket.socket:
    """Return a socket that listens on this port of loopback; 0 lets the kernel choose the port.

    The server that starts next inherits the socket. If the port were only checked to be free, another local user could
    take it while the server loads its libraries, and would receive the login.

    Raises:
        TransientError: if the port is taken.
    """
    try:
        return socket.create_server((HOST, port), backlog=BACKLOG)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise TransientError(f"cannot listen on port {port}: {error.strerror}; choose one with {option}") from error
        raise TransientError(f"port {port} is in use by another program; choose one with {option}") from error


def mlflow_page(home: Home, record: ServiceRecord) -> str:
    """Return the page of the runs in a running UI, which knows the number of the experiment."""
    question = f"{record.url}/api/2.0/mlflow/experiments/get-by-name?experiment_name={EXPERIMENT}"
    answer = get_json(question, load_login(home))
    if answer is None:
        raise TransientError(f"{record.name} at {record.url} does not answer; see {record.log}")
    return runs_page(str(record.url), str(answer["experiment"]["experiment_id"]))


def _run(what: str, command: list[str], environment: dict[str, str], cwd: Path) -> str:
    """Run a short command that must succeed; return its standard output."""
    try:
        result = subprocess.run(  # noqa: S603 - our own commands
            command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise TransientError(
            f"{what} took longer than {COMMAND_TIMEOUT_S:.0f} s, so the machine may be too busy; give the same command "
            f"again later: {' '.join(command)}"
        ) from error
    if result.returncode != 0:
        tail = (result.stdout + result.stderr)[-LOG_TAIL_CHARACTERS:]
        raise SimicError(f"{what} failed with exit status {result.returncode}: {tail.strip()}")
    return result.stdout


def create_prefect_database(home: Home) -> None:
    """Create or migrate the database. The caller holds a lock, because concurrent first users break it."""
    private_directory(home.prefect)
    environment = prefect_environment(home, None)
    _run("creating Prefect's database", _prefect("server", "database", "upgrade", "--yes"), environment, home.root)


def _await(record: ServiceRecord, is_ready: Callable[[], bool]) -> None:
    """Return once a live service is ready; after its end another program may answer on its port."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and is_alive(record):
        if is_ready() and is_alive(record):
            return
        time.sleep(POLL_S)
    tail = Path(record.log).read_text(errors="replace")[-LOG_TAIL_CHARACTERS:]
    raise TransientError(f"{record.name} did not start; end of {record.log}:\n{tail}")


def up(home: Home, port: int, mlflow_port: int, say: Say) -> list[ServiceRecord]:
    """Start the services that do not run yet; stop those just started if one fails.

    The work pool comes before the deployments, which name it. The worker comes last, after the runs of dead processes
    were marked as crashed.
    """
    login = load_login(home)
    alive = running(home)
    if moved := [record.name for record in alive if was_started_elsewhere(run_directory(home), record)]:
        raise ConfigError(
            f"{', '.join(moved)} still run under the path that this home had before it was moved to {home.root}, and "
            "write there: run `simic down` first"
        )
    if any(_is_unguarded(record) for record in alive):
        say("stopping services of an earlier version, which ask for no login")
        down(home, say)
    before = {record.name for record in running(home)}
    try:
        _mlflow_up(home, mlflow_port, login, say)
        api = _server_up(home, port, login, say)
        if WORKER not in before:
            _worker_up(home, api, login, say)
        _await_all(home, api, login)
    except BaseException:
        for record in running(home):
            if record.name not in before:
                stop(run_directory(home), record)
        if read_record(run_directory(home), SERVER) is None:
            write_prefect_profile(home, None)
        raise
    return running(home)


def _is_unguarded(record: ServiceRecord) -> bool:
    return record.name in GUARDED and GUARDED[record.name] not in record.command


def _mlflow_up(home: Home, port: int, login: str, say: Say) -> None:
    if read_record(run_directory(home), MLFLOW) is not None:
        return
    with listen(port, "--mlflow-port") as listener:
        say(f"starting the MLflow UI on port {port}")
        _start_guarded(home, MLFLOW, listener, mlflow_environment(home, login))


def _start_guarded(home: Home, name: str, listener: socket.socket, environment: dict[str, str]) -> ServiceRecord:
    command, url = guarded_command(name, listener), f"http://{HOST}:{listener.getsockname()[1]}"
    return start(run_directory(home), name, command, environment, home.root, url, pass_fds=[listener.fileno()])


def _server_up(home: Home, port: int, login: str, say: Say) -> str:
    record = read_record(run_directory(home), SERVER)
    if record is None:
        with listen(port) as listener:
            say(f"starting the Prefect server on port {port}")
            url = f"http://{HOST}:{port}"
            environment = guarded(prefect_environment(home, f"{url}/api", login), url, login)
            record = _start_guarded(home, SERVER, listener, environment)
    address = f"{record.url}/api"
    _await(record, lambda: answers(f"{address}/health"))
    write_prefect_profile(home, address, login)
    return address


def _worker_up(home: Home, api: str, login: str, say: Say) -> None:
    environment, root = prefect_environment(home, api, login), project_root()
    say(f"creating the work pool {POOL} and deploying prefect.yaml")
    pool = _prefect("work-pool", "create", POOL, "--type", "process", "--overwrite")
    _run("creating the work pool", pool, environment, root)
    _run("deploying prefect.yaml", _prefect("--no-prompt", "deploy", "--all"), environment, root)
    output = _run("cleaning up after crashed runs", [sys.executable, "-m", "flows.crashed_runs"], environment, root)
    for line in output.splitlines():
        say(line)
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
    start(run_directory(home), WORKER, command, with_signing_key(environment | ui_links(home)), root, None)


def ui_links(home: Home) -> dict[str, str]:
    """Return the variables by which stages link from one UI to the other, for the services that run."""
    names = {MLFLOW_URL_VARIABLE: MLFLOW, PREFECT_URL_VARIABLE: SERVER}
    records = {variable: read_record(run_directory(home), name) for variable, name in names.items()}
    return {
        variable: record.url for variable, record in records.items() if record is not None and record.url is not None
    }


def _await_all(home: Home, api: str, login: str) -> None:
    """Wait until the MLflow UI answers and the worker has registered."""
    records = {record.name: record for record in running(home)}
    for name in SERVICES:
        if name not in records:
            raise TransientError(f"{name} ended right after the start; see {run_directory(home) / f'{name}.log'}")
    _await(records[MLFLOW], lambda: answers(f"{records[MLFLOW].url}/health", login))
    prefect = PrefectApi(api, login)
    _await(records[WORKER], lambda: _has_signed_on(records[WORKER], prefect))


def _has_signed_on(worker: ServiceRecord, prefect: PrefectApi) -> bool:
    """Return whether the worker registered under its own name; the server remembers earlier workers too."""
    known = prefect.post(f"work_pools/{POOL}/workers/filter", {})
    return any(registered["name"] == worker.command[-1] for registered in known)


def down(home: Home, say: Say) -> list[ServiceRecord]:
    """Stop the services recorded in this home: the worker first, the server last."""
    records = {record.name: record for record in running(home)}
    stopped = [records[name] for name in (WORKER, MLFLOW, SERVER) if name in records]
    for record in stopped:
        say(f"stopping {record.name} (process {record.pid})")
        stop(run_directory(home), record)
    write_prefect_profile(home, None)
    return stopped
