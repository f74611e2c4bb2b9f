"""Deletions that MLflow's database refuses, whoever asks: the page, the client, or the command line of MLflow.

MLflow deletes the aliases of a version together with it and says nothing, so one click would leave production without a
champion to reload. Triggers of the database refuse that. An alias can still be moved or removed.
"""

from __future__ import annotations

import os
from pathlib import Path

from simic.contracts.names import KARN, MODEL_NAME
from simic.runtime.sqlite_files import reading, writing

__all__ = ["ALIAS_TRIGGER", "protect"]

ALIAS_TRIGGER = "simic_keeps_aliased_versions"
"""The trigger that reads the table of aliases, which no migration of MLflow can rebuild while it exists."""
_REFUSALS = {
    ALIAS_TRIGGER: """
        BEFORE UPDATE OF current_stage ON model_versions
        WHEN new.current_stage = 'Deleted_Internal' AND EXISTS (
            SELECT 1 FROM registered_model_aliases AS held WHERE held.name = new.name AND held.version = new.version
        )
        BEGIN SELECT raise(ABORT, 'a version with an alias is not deleted: move the alias first'); END""",
    **{
        trigger: f"""
        BEFORE DELETE ON registered_models
        WHEN old.name = '{model}'
        BEGIN SELECT raise(ABORT, 'the registered model {model} is not deleted: it holds the champion'); END"""
        for trigger, model in (("simic_keeps_the_model", MODEL_NAME), ("simic_keeps_karn", KARN))
    },
}


def protect(database: Path) -> None:
    """Add the triggers that a database lacks, unless it cannot be written."""
    with reading(database) as connection:
        triggers = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")}
    missing = _REFUSALS.keys() - triggers
    if missing and os.access(database, os.W_OK):
        with writing(database) as connection:
            for name in sorted(missing):
                connection.execute(f"CREATE TRIGGER IF NOT EXISTS {name} {_REFUSALS[name]}")
