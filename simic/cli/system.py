"""Verbs about this machine: init, up, down, ui."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from simic.cli.edge import EXIT_CODES, emit, stderr
from simic.cli.options import AsJson, open_app
from simic.contracts.errors import SimicError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simic.cli.services.processes import ServiceRecord
    from simic.runtime.settings import Home

__all__ = ["add_to"]

UI_SUFFIX = "/?workflowType=machine_learning"
"""Without it MLflow opens in the mode for language models, which shows none of our runs."""

Port = Annotated[int, typer.Option("--port", min=1, max=65535, help="Of the Prefect server.")]
MlflowPort = Annotated[int, typer.Option("--mlflow-port", min=1, max=65535, help="Of the MLflow UI.")]


def add_to(app: typer.Typer) -> None:
    """Register the verbs."""
    for verb in (init, up, down, ui):
        app.command(verb.__name__, epilog=EXIT_CODES)(verb)


def _say(line: str) -> None:
    stderr().print(line)


def init(as_json: AsJson = False) -> None:
    """Make directories, databases and the signing key; safe to repeat and to run side by side."""
    from simic.cli.services.stack import create_prefect_database
    from simic.runtime.locks import exclusive

    app = open_app()
    facts = app.init()
    with exclusive(app.home.locks / "prefect", "creating the Prefect database", wait_s=300):
        if not (app.home.prefect / "prefect.db").exists():
            create_prefect_database(app.home)
    emit(facts, as_json, lambda console: console.print(f"ready: {facts['home']}, signing key {facts['key_id']}"))


def up(port: Port = 4200, mlflow_port: MlflowPort = 5000, as_json: AsJson = False) -> None:
    """Start Prefect server, work pool, deployments, worker and MLflow UI on loopback; what runs already stays."""
    from simic.cli.services import stack
    from simic.runtime.locks import exclusive
    from simic.runtime.settings import resolve_home

    home = resolve_home()
    home.create()
    with exclusive(home.locks / "services", "starting or stopping services"):
        open_app().init()
        records = stack.up(home, port, mlflow_port, _say)
    emit(_facts(records), as_json, lambda console: _show_services(console, home, records))


def down(as_json: AsJson = False) -> None:
    """Stop exactly what `simic up` started in this home."""
    from simic.cli.services import stack
    from simic.runtime.locks import exclusive
    from simic.runtime.settings import resolve_home

    home = resolve_home()
    home.create()
    with exclusive(home.locks / "services", "starting or stopping services", wait_s=60):
        records = stack.down(home, _say)
    emit(_facts(records), as_json, lambda console: console.print(f"stopped {len(records)} services"))


def ui(mlflow_port: MlflowPort = 5000, as_json: AsJson = False) -> None:
    """Show where the MLflow UI is; start it in the foreground if it does not run.

    With --json it only tells where the UI is or would be, and whether it runs; nothing is started.
    """
    from simic.cli.services import stack
    from simic.cli.services.environment import mlflow_environment
    from simic.runtime.settings import resolve_home

    home = resolve_home()
    known = [record for record in stack.running(home) if record.url is not None]
    found = next((_page(record) for record in known if record.name == stack.MLFLOW), None)
    address = found or f"http://{stack.HOST}:{mlflow_port}{UI_SUFFIX}"
    if as_json:
        emit({"url": address, "is_running": found is not None}, as_json, lambda _: None)
        return
    if found is not None:
        for record in known:
            _say(f"{record.name}: {_page(record)}")
        return
    open_app().init()
    _say(f"MLflow UI: {address} (Ctrl-C stops it)")
    command = stack.mlflow_command(home, mlflow_port)
    code = subprocess.call(command, env=mlflow_environment(home, os.environ), cwd=home.root)  # noqa: S603
    if code not in (0, -2, 130):
        raise SimicError(
            f"the MLflow UI ended with exit status {code}; is port {mlflow_port} in use? Try --mlflow-port"
        )


def _page(record: ServiceRecord) -> str:
    return f"{record.url}{UI_SUFFIX}" if record.name == "mlflow-ui" else str(record.url)


def _facts(records: Sequence[ServiceRecord]) -> list[dict[str, object]]:
    return [{"name": record.name, "pid": record.pid, "url": record.url, "log": record.log} for record in records]


def _show_services(console: Console, home: Home, records: Sequence[ServiceRecord]) -> None:
    for record in records:
        console.print(
            f"{record.name}: {_page(record) if record.url else 'running'} (log {record.log})", highlight=False
        )
    console.print("In the checkout: prefect deployment run simic/nightly --watch")
    console.print(
        f"Elsewhere first: export PREFECT_HOME={home.prefect} PREFECT_PROFILES_PATH={home.prefect / 'profiles.toml'}",
        highlight=False,
    )
