"""Examines MLflow's database before MLflow opens it.

MLflow writes its tables into every database that lacks one of them, and migrates it with that, before it compares the
schemas. So a database that MLflow must not change is refused before a client exists.
"""

from __future__ import annotations

import shlex
from functools import cache
from pathlib import Path

from simic.contracts.errors import ContractError, IntegrityError
from simic.ledgers import CANDIDATES_LEDGER, PROMOTIONS_LEDGER
from simic.registry.mlflow_import import import_mlflow
from simic.registry.protection import ALIAS_TRIGGER
from simic.runtime.home import Home
from simic.runtime.sqlite_files import reading

__all__ = ["examine_database", "has_registered"]

_REVISION, _VERSIONS = "alembic_version", "model_versions"


def has_registered(home: Home) -> bool:
    """Return whether a ledger of the home lists registered policies; such a home must not lose its database."""
    return any((home.ledger / name).exists() for name in (CANDIDATES_LEDGER, PROMOTIONS_LEDGER))


def examine_database(home: Home) -> None:
    """Read the database of the home and refuse one that the installed MLflow must not open.

    Raises:
        IntegrityError: if it is damaged or is not a database of MLflow.
        ContractError: if it has another schema than the one of the installed MLflow.
    """
    database = home.mlflow_database
    with reading(database) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        missing = sorted({_REVISION, _VERSIONS} - tables)
        rows = [] if missing else connection.execute(f"SELECT version_num FROM {_REVISION}").fetchall()  # noqa: S608
    if not rows:
        lacks = f"table {' or '.join(missing)}" if missing else f"row in {_REVISION}"
        raise IntegrityError(f"{database} is not a database of MLflow: it has no {lacks}; {_remedy(home)}")
    found, expected = {str(revision) for (revision,) in rows}, _newest_revisions()
    if found != expected:
        raise ContractError(_migration_hint(home.tracking_uri, ", ".join(sorted(found)), ", ".join(sorted(expected))))


def _remedy(home: Home) -> str:
    if has_registered(home):
        return "restore it from a backup, it holds the registered versions"
    return "move it away, the next command makes a new one"


@cache
def _newest_revisions() -> frozenset[str]:
    """Return the schema of the installed MLflow, which the last of its migration scripts makes."""
    import_mlflow()
    from alembic.script import ScriptDirectory
    from mlflow.store import db_migrations

    return frozenset(ScriptDirectory(str(Path(db_migrations.__file__).parent)).get_heads())


def _migration_hint(tracking_uri: str, found: str, expected: str) -> str:
    """Return the error text for a database of another version of MLflow."""
    upgrade = f"mlflow db upgrade {shlex.quote(tracking_uri)}"
    return (
        f"{tracking_uri}: Detected out-of-date database schema (found version {found}, but expected {expected}). Stop "
        f"every command and service, copy the database, drop its trigger {ALIAS_TRIGGER}, which the migration cannot "
        f"pass, and run `{upgrade}`; docs/runbook.md, 'MLflow is upgraded', has the commands. If it cannot locate the "
        f"revision that was found, a newer MLflow wrote the database: install that one"
    )
