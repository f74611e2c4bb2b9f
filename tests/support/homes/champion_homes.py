"""A home with a former champion, a champion and a rejected candidate in a real registry: made once, copied often."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from simic.app.container import Container
from simic.registry.mlflow_store import open_client
from simic.runtime.home import Home
from simic.runtime.settings import load_profile
from support.builders.judged_candidates import judged
from support.homes.mlflow_databases import furnished_home

__all__ = ["FORMER", "PRESENT", "TURNED_AWAY", "crowned_home", "open_home", "point_at", "show_tag", "weights_of"]

FORMER, PRESENT, TURNED_AWAY = 1, 2, 3
"""Versions: the champion before, the champion, and a candidate that the gate rejected."""
_CONTENT = {FORMER: b"one", PRESENT: b"two", TURNED_AWAY: b"bad"}


def crowned_home(root: Path, factory: pytest.TempPathFactory) -> Home:
    """A copy at ``root``; nothing was published yet."""
    template = factory.getbasetemp() / "crowned-template"
    if not template.exists():
        _make(furnished_home(template, factory))
    shutil.copytree(template, root)
    with closing(sqlite3.connect(root / "mlruns" / "mlflow.db")) as database, database:
        _replace_everywhere(database, str(template), str(root))
    return Home(root)


def open_home(home: Home) -> Container:
    """A process's view of it: nothing is remembered from another one."""
    return Container(home, load_profile("quick"), 0)


def point_at(home: Home, number: int | None, alias: str = "champion") -> None:
    """Move the alias as anybody can who reaches MLflow."""
    client = open_client(home.tracking_uri)
    if number is None:
        client.delete_registered_model_alias("tamiyo", alias)
    else:
        client.set_registered_model_alias("tamiyo", alias, str(number))


def show_tag(home: Home, number: int, key: str, value: str) -> None:
    """Edit a tag likewise."""
    open_client(home.tracking_uri).set_model_version_tag("tamiyo", str(number), key, value)


def weights_of(home: Home, number: int) -> Path:
    """The weights that the registry stores for a version."""
    found = (home.artifacts / "models").rglob("weights.safetensors")
    return next(path for path in found if path.read_bytes().startswith(_CONTENT[number]))


def _make(home: Home) -> None:
    registry = open_home(home).registry
    champion = None
    for number in (FORMER, PRESENT):
        evidence = judged(home, _CONTENT[number], champion=champion)
        champion = registry.promote(registry.record(evidence), evidence.validation, evidence.gate).digest
    registry.record(judged(home, _CONTENT[TURNED_AWAY], accepted=False, champion=champion))


def _replace_everywhere(database: sqlite3.Connection, old: str, new: str) -> None:
    """MLflow's locations are absolute."""
    for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        for _, column, kind, *_ in database.execute(f'PRAGMA table_info("{table}")').fetchall():
            if "CHAR" in kind.upper() or "TEXT" in kind.upper():
                database.execute(  # names from the schema, which take no parameters
                    f'UPDATE "{table}" SET "{column}" = replace("{column}", ?, ?) WHERE "{column}" LIKE ?',  # noqa: S608
                    (old, new, f"%{old}%"),
                )
