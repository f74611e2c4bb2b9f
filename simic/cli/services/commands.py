"""Commands for services on this machine: init, up, down, ui."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from simic.cli.console import EXIT_CODES, emit, stderr, working
from simic.cli.options import AsJson, open_container, whole_number
from simic.cli.services import stack
from simic.cli.services.environment import mlflow_environment
from simic.cli.services.login import load_login, login_file
from simic.cli.services.processes import ServiceRecord
from simic.cli.services.stack import create_prefect_database
from simic.contracts.errors import SimicError
from simic.registry.experiment_page import runs_page
from simic.registry.mlflow_store import initialise
from simic.runtime.home import Home, HomeUse, resolve_home
from simic.runtime.locks import exclusive

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["add_to"]

FIRST_EXPERIMENT = "1"
"""Number of the experiment in a database that `simic init` makes; 0 is MLflow's own."""

Port = Annotated[int, whole_number("--port", least=1, most=65535, about="Port of the Prefect server.")]
MlflowPort = Annotated[int, whole_number("--mlflow-port", least=1, most=65535, about="Port of the MLflow UI.")]


def add_to(app: typer.Typer) -> None:
    """Register the verbs."""
    for verb in (init, up, down, ui):
        app.command(verb.__name__, epilog=EXIT_CODES)(verb)


def _say(line: str) -> None:
    stderr().print(line)


def init(as_json: AsJson = False) -> None:
    """Make directories, databases and the signing key; safe to run repeatedly and concurrently."""
    from simic.app.promotion import initialise_home

    container = open_container(use=HomeUse.MAKE)
    makes = "making the databases of MLflow and Prefect, which takes up to half a minute in a new home"
    with working(makes), ThreadPoolExecutor(1) as beside:
        prefect = beside.submit(_require_prefect_database, container.home)
        facts = initialise_home(container)
        prefect.result()
    emit(facts, as_json, lambda console: console.print(f"ready: {facts['home']}, signing key {facts['key_id']}"))


def _require_prefect_database(home: Home) -> None:
    """Create the Prefect database if there is none."""
    with exclusive(home.locks / "prefect", "creating the Prefect database", wait_s=300):
        if not (home.prefect / "prefect.db").exists():
            create_prefect_database(home)


def up(port: Port = 4200, mlflow_port: MlflowPort = 5000, as_json: AsJson = False) -> None:
    """Start Prefect server, work pool, deployments, worker and MLflow UI on loopback.

    Services already running are left alone. Both pages ask for a login. The login is in a file that only you can read;
    its path is printed.
    """
    from simic.app.promotion import initialise_home

    home = resolve_home()
    container = open_container(use=HomeUse.MAKE)
    with exclusive(home.locks / "services", "starting or stopping services"):
        initialise_home(container)
        records = stack.up(home, port, mlflow_port, _say)
    emit(_facts(home, records), as_json, lambda console: _show_services(console, home, records))


def down(as_json: AsJson = False) -> None:
    """Stop exactly what `simic up` started in this home."""
    home = resolve_home()
    home.require()
    home.require_writable()
    with exclusive(home.locks / "services", "starting or stopping services", wait_s=60):
        records = stack.down(home, _say)
    emit(_facts(home, records), as_json, lambda console: console.print(f"stopped {len(records)} services"))


def ui(mlflow_port: MlflowPort = 5000, as_json: AsJson = False) -> None:
    """Show where the MLflow UI is; start it in the foreground if it is not running.

    With --json it only reports where the UI is or would be, and whether it is running; nothing is started.
    """
    from simic.app.promotion import initialise_home

    home = resolve_home()
    known = {record.name: record for record in stack.running(home)}
    if stack.MLFLOW in known:
        address = stack.mlflow_page(home, known[stack.MLFLOW])
        facts = {"url": address, "is_running": True, "login": str(login_file(home))}
        emit(facts, as_json, lambda console: _show_pages(console, home, [*known.values()], address))
        return
    if as_json:
        home.require()
        # Showing the address creates no key and no database.
        experiment = initialise(home) if home.mlflow_database.exists() else FIRST_EXPERIMENT
        address = runs_page(f"http://{stack.HOST}:{mlflow_port}", experiment)
        emit({"url": address, "is_running": False, "login": str(login_file(home))}, as_json, lambda _: None)
        return
    experiment = initialise_home(open_container(use=HomeUse.MAKE))["experiment"]
    address = runs_page(f"http://{stack.HOST}:{mlflow_port}", experiment)
    login = load_login(home)
    environment = mlflow_environment(home, login, os.environ)
    with stack.listen(mlflow_port, "--mlflow-port") as listener:
        _say(f"MLflow UI: {address} (Ctrl-C stops it)")
        _say(f"log in with the name and password in {login_file(home)}")
        command = stack.guarded_command(stack.MLFLOW, listener)
        code = subprocess.call(command, env=environment, cwd=home.root, pass_fds=[listener.fileno()])  # noqa: S603
    if code not in (0, -2, 130):
        raise SimicError(f"the MLflow UI ended with exit status {code}; its output above says why")


def _facts(home: Home, records: Sequence[ServiceRecord]) -> list[dict[str, object]]:
    login = str(login_file(home))
    return [
        {
            "name": record.name,
            "pid": record.pid,
            "url": record.url,
            "log": record.log,
            "login": login if record.url is not None else None,
        }
        for record in records
    ]


def _show_services(console: Console, home: Home, records: Sequence[ServiceRecord]) -> None:
    for record in records:
        console.print(f"{record.name}: process {record.pid}, log {record.log}", highlight=False)
    mlflow = next(record for record in records if record.name == stack.MLFLOW)
    _show_pages(console, home, records, stack.mlflow_page(home, mlflow))
    console.print("In the checkout: prefect deployment run simic/nightly --watch, or from anywhere: simic nightly")
    console.print(
        f"Elsewhere first: export PREFECT_HOME={home.prefect} PREFECT_PROFILES_PATH={home.prefect / 'profiles.toml'}",
        highlight=False,
    )


def _show_pages(console: Console, home: Home, records: Sequence[ServiceRecord], mlflow_page: str) -> None:
    """Print the addresses and the file with the login, never the login itself."""
    for record in records:
        if record.url is not None:
            address = mlflow_page if record.name == stack.MLFLOW else record.url
            console.print(f"{record.name}: {address}", highlight=False)
    console.print(
        f"The login is the one line of {login_file(home)}: Prefect asks for the whole line, MLflow for the name before "
        "the colon and the password after it.",
        highlight=False,
    )
