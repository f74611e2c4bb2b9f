"""MLflow databases for tests: made once a session, copied for each test."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from simic.registry.mlflow_store import initialise
from simic.runtime.home import Home
from simic.trust.keys import Keyring
from support.builders.judged_candidates import SIGNER


def furnished_home(root: Path, factory: pytest.TempPathFactory) -> Home:
    """A home with an empty registry that trusts the signer of the tests."""
    template = Home(factory.getbasetemp() / "mlflow-template")
    if not template.mlruns.exists():
        template.create()
        initialise(template)
    home = Home(root)
    home.create()
    database = home.mlruns / "mlflow.db"
    shutil.copyfile(template.mlruns / "mlflow.db", database)
    with closing(sqlite3.connect(database)) as connection, connection:  # artifact locations are absolute
        connection.execute("UPDATE experiments SET artifact_location = ?", (home.artifacts.as_uri(),))
    Keyring(home.keys).trust(SIGNER.public_bytes)
    return home
