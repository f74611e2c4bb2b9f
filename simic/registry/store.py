"""MLflow's database: made once, opened without global state. The only module that knows how MLflow is reached."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from simic.contracts.errors import ConfigError, ContractViolation, TransientError
from simic.runtime.locks import exclusive
from simic.runtime.settings import Home

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ["EXPERIMENT", "default_store", "initialise", "open_client", "store_errors"]

EXPERIMENT = "simic"
_TRANSIENT = ("TEMPORARILY_UNAVAILABLE", "INTERNAL_ERROR", "DEADLINE_EXCEEDED", "ABORTED")
INITIALISE_WAIT_S = 120.0
_DEFAULT_STORE = "MLFLOW_TRACKING_URI"
_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}
"""Read when MLflow is imported; nothing here may reach out to a network."""


def initialise(home: Home) -> str:
    """Create the database and the experiment unless they are there; returns the experiment's id.

    Two processes that create MLflow's tables at once break each other, so one does it under a lock, into a
    file of another name: what stands at the final name is always complete.
    """
    database = home.mlruns / "mlflow.db"
    with exclusive(home.locks / "mlflow", "creating the MLflow database", INITIALISE_WAIT_S):
        if not database.exists():
            home.artifacts.mkdir(parents=True, exist_ok=True)
            unfinished = home.mlruns / "mlflow.db.new"
            for leftover in home.mlruns.glob("mlflow.db.new*"):
                leftover.unlink()
            client = open_client(f"sqlite:///{unfinished}")
            client.create_experiment(EXPERIMENT, artifact_location=home.artifacts.as_uri())
            unfinished.rename(database)
    experiment = open_client(home.tracking_uri).get_experiment_by_name(EXPERIMENT)
    if experiment is None:
        raise ConfigError(f"{database} has no experiment {EXPERIMENT!r}: it was not made by simic; move it away")
    return str(experiment.experiment_id)


def open_client(tracking_uri: str) -> MlflowClient:
    """A client of one database, for tracking and for the registry."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    with warnings.catch_warnings():
        # Third-party deprecations at import time are not ours to act upon.
        warnings.simplefilter("ignore")
        from mlflow import MlflowClient
    for name in ("mlflow.store.db.utils", "alembic.runtime.migration"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return MlflowClient(tracking_uri=tracking_uri, registry_uri=tracking_uri)


@contextmanager
def default_store(tracking_uri: str) -> Iterator[None]:
    """MLflow resolves ``models:/<id>`` sources against its default store, whatever client is asked."""
    before = os.environ.get(_DEFAULT_STORE)
    os.environ[_DEFAULT_STORE] = tracking_uri
    try:
        yield
    finally:
        if before is None:
            del os.environ[_DEFAULT_STORE]
        else:
            os.environ[_DEFAULT_STORE] = before


@contextmanager
def store_errors(what: str) -> Iterator[None]:
    """MLflow's own failures as errors of ours; ``what`` says what was being done."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        message = f"{what}: MLflow answered {error.error_code}: {error.message}"
        raise (TransientError if error.error_code in _TRANSIENT else ContractViolation)(message) from error
