"""``simic`` commands, MLflow's and scripts as processes of their own, forked from one that loaded the libraries once.

See ``fork_server`` for what such a process is. Not for tests of imports, signals, terminals or Prefect.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from support.servers.fork_server import ForkServer

__all__ = ["run_command", "run_mlflow", "run_script"]

PRELOADED = (
    "simic.cli.main",
    "mlflow",
    "mlflow.store.model_registry.sqlalchemy_store",  # which MLflow loads with the first client,
    "mlflow.store.tracking.sqlalchemy_store",
    "pandas",  # and pyarrow with the first column
    "simic.app.data",
    "simic.app.checks.doctor",
    "simic.app.promotion",
    "simic.app.training",
    "simic.catalogue.query",
    "simic.registry.registry",
    "sqlalchemy.dialects.sqlite",
)


def run_command(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``simic`` with ``arguments``, with ``os.environ`` and the working directory of the test by default."""
    code = "from simic.cli.main import main\nmain()"
    return _server().run(code, *arguments, name="simic", env=env, cwd=cwd)


def run_mlflow(*arguments: str) -> None:
    """Run MLflow's own command; AssertionError if it fails."""
    done = _server().run("from mlflow.cli import cli\ncli()", *arguments, name="mlflow")
    assert done.returncode == 0, done.stderr


def run_script(code: str, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``code`` as a script with ``arguments``; it can import what the tests import."""
    return _server().run(code, *arguments, name="-c", env=env)


@cache
def _server() -> ForkServer:
    return ForkServer(PRELOADED)
