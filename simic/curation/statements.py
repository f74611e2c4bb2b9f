"""The numbered SQL files, in order, and what runs them.

``NNN_name.sql`` becomes the table ``name``, ``NNN_name.view.sql`` a view, and ``NNN_name.parquet.sql`` is written to
``name.parquet`` and can be read as ``name_written`` from then on. Each file is one SELECT, so that it can be read, and
tried at a prompt, without its surroundings. ``$name`` stands for a setting, in views and outputs too.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Literal, NamedTuple

import duckdb

from simic.contracts.actions import OPS
from simic.contracts.batches import STAGES
from simic.contracts.errors import ContractViolation
from simic.contracts.splits import Split
from simic.curation.families import family_statement, range_offenders
from simic.trust.canonical import digest_of

__all__ = [
    "CHECKS_TABLE",
    "Statement",
    "Watch",
    "bound",
    "create_tables",
    "create_types",
    "load_statements",
    "set_parameters",
    "sql_digest",
    "unwatched",
    "write_outputs",
]

CHECKS_TABLE = "checks"
_FILE = re.compile(r"(\d{3})_([a-z][a-z0-9_]*?)(\.view|\.parquet)?\.sql")
_PARAMETER = re.compile(r"\$([a-z_]+)")
_KINDS: dict[str | None, Literal["table", "view", "output"]] = {None: "table", ".view": "view", ".parquet": "output"}
_FAMILY_NUMBER = "048"
"""Where the file of the reward family stands among the numbers."""
_RANGES_NUMBER = "088"
_PARQUET = "FORMAT parquet, PARQUET_VERSION V2, COMPRESSION zstd, COMPRESSION_LEVEL 3, ROW_GROUP_SIZE 65536"
"""Groups of a set number of rows, in order, so no byte that is hashed depends on how threads share the work."""

Watch = Callable[[str], None]


def unwatched(_: str) -> None:
    """Tells nobody."""


class Statement(NamedTuple):
    """One numbered file."""

    file: str
    name: str
    """Of the table or view, or of the Parquet file without its suffix."""
    kind: Literal["table", "view", "output"]
    sql: str


def load_statements(family: str) -> list[Statement]:
    """All files in the order of their numbers, the one of the reward family among them."""
    numbered = {}
    for entry in files("simic.curation").joinpath("sql").iterdir():
        if match := _FILE.fullmatch(entry.name):
            numbered[match[1]] = Statement(entry.name, match[2], _KINDS[match[3]], entry.read_text("utf-8"))
    sql = family_statement(family)
    numbered[_FAMILY_NUMBER] = Statement(f"rewards/{family}.sql", "family_terms", "view", sql)
    numbered[_RANGES_NUMBER] = Statement("range_offenders", "range_offenders", "view", range_offenders(sql))
    return [numbered[number] for number in sorted(numbered)]


def sql_digest(statements: list[Statement]) -> str:
    """Of every file's name and text."""
    return digest_of([[statement.file, statement.sql] for statement in statements])


def create_tables(
    connection: duckdb.DuckDBPyConnection,
    statements: list[Statement],
    parameters: Mapping[str, object],
    watch: Watch = unwatched,
) -> None:
    """Builds every table in order; raises ContractViolation if ``checks`` then holds an offender.

    ``watch`` is told each file that was done.
    """
    create_types(connection)
    set_parameters(connection, parameters)
    last_reader = _last_readers(statements)
    for number, statement in enumerate(statements):
        if statement.kind != "output":
            connection.execute(f'CREATE {statement.kind} "{statement.name}" AS\n{bound(statement.sql)}')
            for name in last_reader[number]:
                connection.execute(f'DROP TABLE "{name}"')
            watch(statement.file)
    offenders = connection.execute(f'FROM "{CHECKS_TABLE}" ORDER BY ALL LIMIT 5').fetchall()
    if offenders:
        found = "; ".join(f"{promise} ({run_id}, step {step})" for promise, run_id, step in offenders)
        raise ContractViolation(f"curation broke its own promises, no snapshot was made; first offenders: {found}")


def create_types(connection: duckdb.DuckDBPyConnection) -> None:
    """One byte for what would be a text in every row."""
    for name, members in (("OPERATION", OPS), ("STAGE", STAGES), ("SPLIT", Split)):
        listed = ", ".join(f"'{member.value}'" for member in members)
        connection.execute(f"CREATE TYPE {name} AS ENUM ({listed})")


def _last_readers(statements: list[Statement]) -> dict[int, list[str]]:
    """By the number of a statement, the tables that nothing after it reads. A view reads when it is read."""
    named = {statement.name: number for number, statement in enumerate(statements)}
    readers: dict[str, list[Statement]] = {name: [] for name in named}
    for statement in statements:
        for name in set(re.findall(r"\w+", bound(statement.sql).lower())) & named.keys() - {statement.name}:
            readers[name].append(statement)

    def last(name: str) -> int:
        numbers = [last(each.name) if each.kind == "view" else named[each.name] for each in readers[name]]
        return max(numbers, default=-1)

    found = defaultdict(list)
    for statement in statements:
        if statement.kind == "table":
            found[last(statement.name)].append(statement.name)
    return found


def set_parameters(connection: duckdb.DuckDBPyConnection, parameters: Mapping[str, object]) -> None:
    """What ``$name`` stands for from now on."""
    for name, value in parameters.items():
        connection.execute(f"SET VARIABLE {name} = $value", {"value": value})


def write_outputs(
    connection: duckdb.DuckDBPyConnection,
    statements: list[Statement],
    directory: Path,
    watch: Watch = unwatched,
) -> None:
    """Writes every output."""
    for statement in statements:
        if statement.kind == "output":
            target = str(directory / f"{statement.name}.parquet").replace("'", "''")
            connection.execute(f"COPY (\n{bound(statement.sql)}\n) TO '{target}' ({_PARQUET})")
            connection.execute(f"CREATE VIEW \"{statement.name}_written\" AS FROM read_parquet('{target}')")
            watch(statement.file)


def bound(sql: str) -> str:
    """Settings as variables of the connection: unlike prepared parameters, views and COPY may use them."""
    code = re.sub(r"--.*", "", sql)
    return _PARAMETER.sub(r"getvariable('\1')", code)
