"""Databases of other programs, also after their writers were killed."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from simic.contracts.errors import IntegrityError
from simic.runtime.sqlite_files import reading

# The cache of one page makes SQLite write to the file within the transaction, so its journal is needed afterwards.
WRITER = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size = 1")
connection.execute("BEGIN IMMEDIATE")
for row in range(400):
    connection.execute("INSERT INTO numbers VALUES (?, ?)", (row, "x" * 400))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "a?b.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE numbers (number INTEGER, text TEXT)")
        connection.execute("INSERT INTO numbers VALUES (7, 'kept')")
    connection.close()
    return path


def test_a_reader_undoes_what_a_killed_writer_left(database: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WRITER, str(database)], check=False)
    assert done.returncode == -signal.SIGKILL
    journal = database.with_name(f"{database.name}-journal")
    assert journal.stat().st_size > 0
    for _ in range(2):
        with reading(database) as connection:
            assert connection.execute("SELECT number FROM numbers").fetchall() == [(7,)]
            with pytest.raises(sqlite3.OperationalError, match="readonly"):
                connection.execute("DELETE FROM numbers")
    assert not journal.exists()


def test_a_reader_leaves_a_living_writer_alone(database: Path) -> None:
    with sqlite3.connect(database, isolation_level=None) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("INSERT INTO numbers VALUES (8, 'new')")
        with reading(database) as connection:
            assert connection.execute("SELECT number FROM numbers").fetchall() == [(7,)]
        writer.execute("COMMIT")
    writer.close()
    with reading(database) as connection:
        assert connection.execute("SELECT count(*) FROM numbers").fetchone() == (2,)


def test_a_file_that_is_no_database_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "one.db"
    path.write_bytes(os.urandom(8192))
    with pytest.raises(IntegrityError, match="restore it from a backup"), reading(path):
        pass
