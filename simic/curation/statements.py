"""The numbered SQL files, in order, and what runs them.

``NNN_name.sql`` becomes the table ``name``; ``NNN_name.parquet.sql`` is written to ``name.parquet``. Each file is one
SELECT, so that it can be read, and tried at a prompt, without its surroundings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import duckdb

from simic.contracts.errors import ContractViolation
from simic.trust.canonical import digest_of

__all__ = ["CHECKS_TABLE", "Statement", "create_tables", "load_statements", "sql_digest", "write_outputs"]

CHECKS_TABLE = "checks"
_FILE = re.compile(r"(\d{3})_([a-z][a-z0-9_]*)(\.parquet)?\.sql")
_PARAMETER = re.compile(r"\$([a-z_]+)")
_ROW_GROUP = 8192
"""Rows; the writer holds one group in memory, and a nested row takes a few kB there."""


class Statement(NamedTuple):
    """One numbered file."""

    file: str
    name: str
    """Of the table, or of the Parquet file without its suffix."""
    is_output: bool
    sql: str


def load_statements() -> list[Statement]:
    """All files in the order of their numbers."""
    statements = []
    for entry in sorted(files("simic.curation").joinpath("sql").iterdir(), key=lambda entry: entry.name):
        if match := _FILE.fullmatch(entry.name):
            statements.append(Statement(entry.name, match[2], match[3] is not None, entry.read_text("utf-8")))
    return statements


def sql_digest(statements: list[Statement]) -> str:
    """Of every file's name and text."""
    return digest_of([[statement.file, statement.sql] for statement in statements])


def create_tables(
    connection: duckdb.DuckDBPyConnection, statements: list[Statement], parameters: Mapping[str, object]
) -> None:
    """Builds every table in order; raises ContractViolation if ``checks`` then holds an offender."""
    for statement in statements:
        if not statement.is_output:
            used = _used(statement, parameters)
            connection.execute(f'CREATE TABLE "{statement.name}" AS\n{statement.sql}', used)
    offenders = connection.execute(f'FROM "{CHECKS_TABLE}" ORDER BY ALL LIMIT 5').fetchall()
    if offenders:
        found = "; ".join(f"{promise} ({run_id}, step {step})" for promise, run_id, step in offenders)
        raise ContractViolation(f"curation broke its own promises, no snapshot was made; first offenders: {found}")


def write_outputs(connection: duckdb.DuckDBPyConnection, statements: list[Statement], directory: Path) -> None:
    """Writes every output; on one thread, so that no byte that is hashed depends on how threads share the work."""
    connection.execute("SET threads = 1")
    for statement in statements:
        if statement.is_output:
            target = str(directory / f"{statement.name}.parquet").replace("'", "''")
            connection.execute(
                f"COPY (\n{statement.sql}\n) TO '{target}' "
                f"(FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 3, ROW_GROUP_SIZE {_ROW_GROUP})"
            )


def _used(statement: Statement, parameters: Mapping[str, object]) -> dict[str, object]:
    """DuckDB refuses parameters that a statement does not name."""
    code = re.sub(r"--.*", "", statement.sql)
    return {name: parameters[name] for name in _PARAMETER.findall(code)}
