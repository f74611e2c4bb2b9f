"""What MLflow refuses for good is told apart from what passes, on a real database."""

from __future__ import annotations

import os
import re
import shlex
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from mlflow.exceptions import MlflowException
from support.builders.judged_candidates import SIGNER, ticking

from simic.contracts.errors import ContractError, IntegrityError, TransientError
from simic.registry.mlflow_store import initialise, open_client_of, store_errors
from simic.registry.registry import Registry
from simic.runtime.home import Home
from simic.trust.keys import Keyring

NEWER_TABLE = "webhook_events"
"""A table that earlier versions of MLflow lack, and that nothing refers to."""


def open_registry(place: Home, keyring: Keyring) -> Registry:
    return Registry(place, keyring, signer=lambda: SIGNER, clock=ticking())


@pytest.mark.parametrize("revision", ["0584bdc529eb", "0123456789ab"], ids=["earlier", "unknown"])
def test_a_database_of_another_schema_is_a_lasting_error_that_names_the_migration(
    place: Home, keyring: Keyring, revision: str
) -> None:
    path = place.mlruns / "mlflow.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE alembic_version SET version_num = ?", (revision,))
        database.execute("DROP TRIGGER simic_keeps_aliased_versions")  # as the runbook says
        database.execute(f"DROP TABLE {NEWER_TABLE}")  # MLflow migrates a database that lacks a table of today
    before = path.read_bytes()
    with pytest.raises(ContractError) as raised:
        open_registry(place, keyring)
    told = str(raised.value)
    assert f"found version {revision}, but expected " in told
    assert f"`mlflow db upgrade {place.tracking_uri}`" in told
    assert "simic_keeps_aliased_versions" in told
    assert path.read_bytes() == before


def test_the_command_of_the_migration_can_be_pasted_for_a_home_with_a_space_in_its_path(
    place: Home, keyring: Keyring
) -> None:
    home = Home(place.root.rename(place.root.with_name("my place")))
    with closing(sqlite3.connect(home.mlruns / "mlflow.db")) as database, database:
        database.execute("UPDATE alembic_version SET version_num = '0584bdc529eb'")
    with pytest.raises(ContractError) as raised:
        open_registry(home, Keyring(home.keys))
    (command,) = re.findall(r"run `(mlflow db upgrade [^`]*)`", str(raised.value))
    assert shlex.split(command) == ["mlflow", "db", "upgrade", home.tracking_uri]


def test_a_damaged_database_is_told_as_damage(place: Home, keyring: Keyring) -> None:
    path = place.mlruns / "mlflow.db"
    path.write_bytes(b"no database, " * 1000)
    with pytest.raises(IntegrityError, match=r"mlflow\.db: file is not a database; restore it from a backup"):
        open_registry(place, keyring)


@pytest.mark.parametrize("statement", ["", "CREATE TABLE notes (text)"], ids=["empty", "of others"])
@pytest.mark.parametrize("is_listed", [False, True], ids=["no policies", "registered policies"])
def test_what_is_no_database_of_mlflow_is_refused_and_stays_as_it_is(
    place: Home, keyring: Keyring, statement: str, is_listed: bool
) -> None:
    path = place.mlruns / "mlflow.db"
    path.unlink()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(statement)
    path.touch()
    if is_listed:
        (place.ledger / "candidates.jsonl").touch()
    before = path.read_bytes()
    remedy = "restore it from a backup" if is_listed else "move it away"
    with pytest.raises(IntegrityError, match=rf"has no table alembic_version or model_versions; {remedy}"):
        open_registry(place, keyring)
    with pytest.raises(IntegrityError):
        open_client_of(place)
    assert path.read_bytes() == before


def test_a_database_that_was_never_migrated_to_its_end_is_refused(place: Home, keyring: Keyring) -> None:
    with closing(sqlite3.connect(place.mlruns / "mlflow.db")) as database, database:
        database.execute("DELETE FROM alembic_version")
    with pytest.raises(IntegrityError, match="has no row in alembic_version"):
        open_registry(place, keyring)


def test_a_sqlite_that_is_too_old_is_a_lasting_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.26.0")
    home = Home(tmp_path / "fresh")
    home.create()
    message = r"opening: MLflow answered INTERNAL_ERROR: MLflow requires SQLite >= "
    with pytest.raises(ContractError, match=message), store_errors("opening"):
        initialise(home)


def test_other_internal_errors_may_pass() -> None:
    with (
        pytest.raises(TransientError, match="reading: MLflow answered INTERNAL_ERROR: no answer"),
        store_errors("reading"),
    ):
        raise MlflowException("no answer")


@pytest.mark.parametrize("block", ["store_errors('a step')", "display_only('a text', 'a remedy')"])
def test_a_block_that_translates_errors_of_mlflow_keeps_mlflow_off_the_network(block: str) -> None:
    """MLflow decides at its import whether it reports its use."""
    code = f"import os; from simic.registry.mlflow_store import *\nwith {block}: print(os.environ['DO_NOT_TRACK'])"
    set_here = {"DO_NOT_TRACK", "MLFLOW_DISABLE_TELEMETRY"}
    bare = {name: value for name, value in os.environ.items() if name not in set_here}
    ran = subprocess.run([sys.executable, "-c", code], env=bare, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "true"
