"""Access to SQLite databases of other programs under any path."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from simic.contracts.errors import IntegrityError, SimicError, TransientError

__all__ = ["reading", "sqlite_url", "writing"]

_WAIT_S = 60.0
_LOOK = "SELECT count(*) FROM sqlite_master"
_HALF_DONE = ("SQLITE_READONLY_ROLLBACK", "SQLITE_READONLY_RECOVERY")
"""Names of the errors of a reader that finds the journal of a writer that is gone."""


def sqlite_url(path: Path, driver: str = "sqlite") -> str:
    """Return the SQLAlchemy address of a database file, percent-encoded if a plain path would be misread."""
    text = str(path)
    if text.isprintable() and not set(text) & set("?#%"):
        return f"{driver}:///{text}"
    # Of a "sqlite:///" address MLflow takes the rest for a path, and makes its folders below the current directory.
    dialect = "sqlite+pysqlite" if driver == "sqlite" else driver
    return f"{dialect}:///file:{quote(text)}?uri=true"


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a read-only connection, also on a read-only file system.

    What a killed writer left half done is undone first, for which SQLite needs a connection that may write.

    Raises IntegrityError for a file that is damaged or not a database, and TransientError for other failures.
    """
    # SQLite creates a file beside a database with a write-ahead log even to read it. If it cannot, and no log is left,
    # the database file is complete by itself.
    is_alone = not os.access(path.parent, os.W_OK) and not path.with_name(f"{path.name}-wal").exists()
    address = f"file:{quote(str(path))}?mode=ro{'&immutable=1' if is_alone else ''}"
    try:
        with closing(sqlite3.connect(address, timeout=_WAIT_S, uri=True)) as connection:
            try:
                connection.execute(_LOOK)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorname not in _HALF_DONE:
                    raise
                with closing(sqlite3.connect(path, timeout=_WAIT_S)) as writer:
                    writer.execute(_LOOK)
            yield connection
    except sqlite3.Error as error:
        raise _failure("read", path, error) from error


@contextmanager
def writing(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a connection with one transaction, which is committed at the end or rolled back.

    Raises IntegrityError for a file that is damaged or not a database, and TransientError for other failures.
    """
    try:
        with closing(sqlite3.connect(path, timeout=_WAIT_S)) as connection, connection:
            yield connection
    except sqlite3.Error as error:
        raise _failure("write", path, error) from error


def _failure(verb: str, path: Path, error: sqlite3.Error) -> SimicError:
    # The class of "file is not a database" and "database disk image is malformed"; transient errors are subclasses.
    if type(error) is sqlite3.DatabaseError:
        return IntegrityError(f"cannot {verb} {path}: {error}; restore it from a backup")
    return TransientError(f"cannot {verb} {path}: {error}; try again")
