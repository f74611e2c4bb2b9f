"""What MLflow refuses for good is told apart from what passes, on a real database."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from mlflow.exceptions import MlflowException
from support.builders.judged_candidates import SIGNER, ticking

from simic.contracts.errors import ContractError, TransientError
from simic.registry.mlflow_store import initialise, store_errors
from simic.registry.registry import Registry
from simic.runtime.home import Home
from simic.trust.keys import Keyring


@pytest.mark.parametrize("revision", ["0584bdc529eb", "0123456789ab"], ids=["earlier", "unknown"])
def test_a_database_of_another_schema_is_a_lasting_error_that_names_the_migration(
    place: Home, keyring: Keyring, revision: str
) -> None:
    with sqlite3.connect(place.mlruns / "mlflow.db") as database:
        database.execute("UPDATE alembic_version SET version_num = ?", (revision,))
        database.execute("DROP TRIGGER simic_keeps_aliased_versions")  # as the runbook says
    with pytest.raises(ContractError) as raised:
        Registry(place, keyring, signer=lambda: SIGNER, clock=ticking())
    told = str(raised.value)
    assert f"found version {revision}, but expected " in told
    assert f"`mlflow db upgrade {place.tracking_uri}`" in told
    assert "simic_keeps_aliased_versions" in told
    with sqlite3.connect(place.mlruns / "mlflow.db") as database:
        found = database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
    assert ("simic_keeps_aliased_versions",) not in found, "the migration cannot pass it"


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
