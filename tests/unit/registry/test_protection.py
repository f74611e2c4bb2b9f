"""The triggers on MLflow's database do not stand in the way of its migrations, if the runbook is followed."""

from __future__ import annotations

import re
import shlex
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Column, String, create_engine

from simic.registry.mlflow_store import initialise
from simic.runtime.home import Home

RUNBOOK = (Path(__file__).parents[3] / "docs" / "runbook.md").read_text("utf-8")
OURS = {"simic_keeps_aliased_versions", "simic_keeps_the_model"}


def triggers(place: Home) -> set[str]:
    with closing(sqlite3.connect(place.mlruns / "mlflow.db")) as database:
        return {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")} & OURS


@pytest.mark.parametrize("table", ["model_versions", "registered_models", "registered_model_aliases"])
def test_a_table_can_be_rebuilt_after_the_command_of_the_runbook_and_is_protected_again(
    place: Home, table: str
) -> None:
    initialise(place)
    assert triggers(place) == OURS
    (command,) = re.findall(r"^python (-c .*DROP TRIGGER.*)$", RUNBOOK, re.MULTILINE)
    subprocess.run([sys.executable, *shlex.split(command)], cwd=place.root, check=True, timeout=60)
    with create_engine(f"sqlite:///{place.mlruns / 'mlflow.db'}").begin() as connection:
        operations = Operations(MigrationContext.configure(connection))
        with operations.batch_alter_table(table, recreate="always") as batch:
            batch.add_column(Column("of_a_later_release", String(8)))
    initialise(place)
    assert triggers(place) == OURS
