"""Homes that many tests begin with: made once for all processes of a session, copied for each test."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from simic.runtime.home import Home
from simic.runtime.locks import exclusive

__all__ = ["copy_of", "shared_folder"]

WAIT_S = 240.0


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """A folder of this session that all its worker processes see."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def copy_of(name: str, make: Callable[[Home], object], root: Path, factory: pytest.TempPathFactory) -> Home:
    """A copy at ``root`` of the home that ``make`` filled; each name stands for one ``make``."""
    folder = shared_folder(factory) / "templates"
    template, is_made = Home(folder / name), folder / f"{name}.made"
    with exclusive(folder / f"{name}.lock", f"making the home {name}", WAIT_S):
        if not is_made.exists():
            shutil.rmtree(template.root, ignore_errors=True)  # what a process that ended in the midst left
            make(template)
            is_made.touch()
    shutil.copytree(template.root, root, dirs_exist_ok=True)
    with closing(sqlite3.connect(root / "mlruns" / "mlflow.db")) as database, database:
        _replace_everywhere(database, str(template.root), str(root))
    return Home(root)


def _replace_everywhere(database: sqlite3.Connection, old: str, new: str) -> None:
    """MLflow's locations are absolute."""
    for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        for _, column, kind, *_ in database.execute(f'PRAGMA table_info("{table}")').fetchall():
            if "CHAR" in kind.upper() or "TEXT" in kind.upper():
                database.execute(  # names from the schema, which take no parameters
                    f'UPDATE "{table}" SET "{column}" = replace("{column}", ?, ?) WHERE "{column}" LIKE ?',  # noqa: S608
                    (old, new, f"%{old}%"),
                )
