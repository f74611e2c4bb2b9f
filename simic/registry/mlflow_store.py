"""Create and open MLflow's database without global state. Only this module knows how MLflow is reached."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from simic.contracts.errors import ConfigError, ContractError, TransientError
from simic.contracts.names import KARN, MODEL_NAME
from simic.ledgers.policies import candidate_versions
from simic.ledgers.promotions import History
from simic.registry.experiment_page import experiment_tags
from simic.registry.locations import rewrite_locations
from simic.registry.mlflow_import import import_mlflow
from simic.registry.mlflow_schema import examine_database, has_registered
from simic.registry.protection import protect
from simic.runtime.home import Home
from simic.runtime.locks import exclusive
from simic.runtime.sqlite_files import sqlite_url

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = [
    "EXPERIMENT",
    "INITIALISE_WAIT_S",
    "default_store",
    "display_only",
    "initialise",
    "open_client",
    "open_client_of",
    "store_errors",
]

_LOG = logging.getLogger(__name__)

EXPERIMENT = "simic"
EXPERIMENTS = {MODEL_NAME: EXPERIMENT, KARN: "simic karn"}
"""Experiment of each registered model: a run is one judged version of it."""
_TRANSIENT = ("TEMPORARILY_UNAVAILABLE", "INTERNAL_ERROR", "DEADLINE_EXCEEDED", "ABORTED")
_LASTING = (
    "Detected out-of-date database schema",
    "MLflow requires SQLite",
    "Migration script directory was in unexpected state",
)
"""Beginnings of MLflow's messages about the installation and the schema, which no repetition changes. MLflow gives
them the code INTERNAL_ERROR, as it does to failures that pass."""
INITIALISE_WAIT_S = 120.0
_DEFAULT_STORE = "MLFLOW_TRACKING_URI"


def initialise(home: Home, model: str = MODEL_NAME) -> str:
    """Create the database and the experiment of a model if they are missing; return the experiment's id.

    The database refuses to delete a version that has an alias.

    Two processes that create MLflow's tables at once break each other. So one process creates them under a lock, in a
    file with another name: the file at the final name is always complete.
    """
    database = home.mlflow_database
    if not database.exists():  # an existing database needs no lock, and a read-only home grants none
        with exclusive(home.locks / "mlflow", "creating the MLflow database", INITIALISE_WAIT_S):
            if not database.exists():
                _create(home, database)
    client = open_client_of(home)
    protect(database)  # after MLflow took it: the trigger keeps a database of another schema from being migrated
    if (experiment := client.get_experiment_by_name(EXPERIMENTS[model])) is not None:
        return str(experiment.experiment_id)
    if model == MODEL_NAME or candidate_versions(home, model):
        raise ConfigError(_without_experiment(home, database, model))
    return _create_experiment(client, home, model)


def _without_experiment(home: Home, database: Path, model: str) -> str:
    """Return the error text for a database without the experiment of a model.

    A home with registered policies must not lose its registry, so its database is never to be moved away.
    """
    missing = f"{database} has no experiment {EXPERIMENTS[model]!r}"
    if has_registered(home):
        return (
            f"{missing}, but the ledgers of this home list registered policies: the experiment was purged (`mlflow gc`)"
            f", or the file is another database. Restore {database} from a backup; do not move it away, it holds the "
            f"registered versions"
        )
    return f"{missing}: it was not made by simic; move it away"


def _create(home: Home, database: Path) -> None:
    home.artifacts.mkdir(parents=True, exist_ok=True)
    unfinished = home.mlruns / "mlflow.db.new"
    for leftover in home.mlruns.glob("mlflow.db.new*"):
        leftover.unlink()
    client = open_client(sqlite_url(unfinished))
    _create_experiment(client, home, MODEL_NAME)
    rewrite_locations(home, unfinished)  # MLflow's own experiment would otherwise lie below the current directory
    unfinished.rename(database)


def _create_experiment(client: MlflowClient, home: Home, model: str) -> str:
    tags = experiment_tags(History((), None, model))
    return str(client.create_experiment(EXPERIMENTS[model], artifact_location=home.artifacts.as_uri(), tags=tags))


def open_client_of(home: Home) -> MlflowClient:
    """Return a client of the database of a home, which is examined before MLflow can change it.

    Raises:
        IntegrityError: if the database is damaged or is not one of MLflow.
        ContractError: if it has another schema than the one of the installed MLflow.
        MlflowException: if MLflow cannot open it for another reason.
    """
    if home.mlflow_database.exists():
        examine_database(home)
    return open_client(home.tracking_uri)


def open_client(tracking_uri: str) -> MlflowClient:
    """Return a client of one database, for tracking and for the registry.

    MLflow makes the database, or those of its tables that are missing.

    Raises:
        MlflowException: if MLflow cannot open it.
    """
    import_mlflow()
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=tracking_uri, registry_uri=tracking_uri)


@contextmanager
def default_store(tracking_uri: str) -> Iterator[None]:
    """Set MLflow's default store for a block: every client resolves ``models:/<id>`` sources against it."""
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
    """Raise MLflow's failures in a block as TransientError or ContractError; ``what`` names the attempted step."""
    import_mlflow()
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        message = f"{what}: MLflow answered {error.error_code}: {error.message}"
        may_pass = error.error_code in _TRANSIENT and not error.message.startswith(_LASTING)
        raise (TransientError if may_pass else ContractError)(message) from error


@contextmanager
def display_only(what: str, remedy: str) -> Iterator[None]:
    """Log MLflow's failures in a block as a warning: the block writes text for people, which decides nothing.

    A deleted or purged run refuses every name and tag. A promotion, a rollback or a recovery goes on without them.

    Args:
        what: The text that the block writes.
        remedy: What the operator can do.
    """
    import_mlflow()
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        _LOG.warning("%s not written, MLflow answered %s: %s; %s", what, error.error_code, error.message, remedy)
