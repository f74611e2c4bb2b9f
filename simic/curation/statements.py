"""The numbered SQL files of curation: loading, parameters and execution in order.

``NNN_name.sql`` becomes the table ``name``, ``NNN_name.view.sql`` a view, and ``NNN_name.parquet.sql`` is written to
``name.parquet``, which later files read as ``name_written``. Each file is one SELECT, so it can be read and tried at a
prompt on its own. ``$name`` stands for a setting or constant, in views and outputs too.
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
from simic.contracts.errors import ConfigError, ContractError
from simic.contracts.rewards import SETTING_LINE
from simic.contracts.splits import Split
from simic.lake.duck import exactly
from simic.snapshots.schema import STEP_COLUMNS
from simic.trust.canonical import digest_of

__all__ = [
    "CHECKS_TABLE",
    "OnStatement",
    "Statement",
    "Term",
    "create_tables",
    "create_types",
    "family_statement",
    "family_terms",
    "ignore",
    "load_statements",
    "range_violations",
    "set_parameters",
    "sql_digest",
    "substitute_parameters",
    "write_outputs",
]

_TERMS = frozenset(name for name in STEP_COLUMNS if name.startswith("reward_"))
_NEEDED_TERMS = frozenset({"reward_progress", "reward_rent", "reward_penalty"})
_TERM = re.compile(r"^-- term (reward_[a-z_]+) in \[(.+)\]: (.+)$", re.MULTILINE)


class Term(NamedTuple):
    """A term of a reward, with the range that its family declares."""

    name: str
    low: str
    """SQL."""
    high: str
    meaning: str


def family_statement(family: str) -> str:
    """Return the SQL of a reward family without the lines that declare its settings.

    A digest of the SQL therefore does not depend on defaults and wording of constants.

    Raises:
        ConfigError: there is no file for it, or its terms do not fit the columns of a snapshot.
    """
    entry = files("simic.curation").joinpath("sql", "rewards", f"{family}.sql")
    if not entry.is_file():
        raise ConfigError(f"reward family {family!r} has no file {family}.sql in simic/curation/sql/rewards")
    sql = SETTING_LINE.sub("", entry.read_text("utf-8"))
    terms = {term.name for term in family_terms(sql)}
    if not _NEEDED_TERMS <= terms <= _TERMS:
        raise ConfigError(
            f"{family}.sql: wrong `-- term` lines. Required terms: {', '.join(sorted(_NEEDED_TERMS))}; optional: "
            f"{', '.join(sorted(_TERMS - _NEEDED_TERMS))}; found: {', '.join(sorted(terms)) or 'none'}. Another term "
            "needs a column in simic/snapshots/schema.py and in the statements that list the columns"
        )
    return sql


def family_terms(sql: str) -> list[Term]:
    """Return the terms that a family declares, in the order of summation."""
    return [Term(name, *_split_bounds(bounds), meaning) for name, bounds, meaning in _TERM.findall(sql)]


def range_violations(sql: str) -> str:
    """Return a SELECT of every step at which a declared term is null or outside its range."""
    branches = [
        f"SELECT '{term.name}_in_range' AS invariant, run_id, step,\n"
        f"    'expected ' || ({term.low}) || ' to ' || ({term.high})\n"
        f"    || ', found ' || coalesce({term.name}::VARCHAR, 'null') AS violation\n"
        f"FROM reward_terms\n"
        f"WHERE NOT coalesce({term.name} BETWEEN ({term.low}) - $points_tolerance "
        f"AND ({term.high}) + $points_tolerance, false)"
        for term in family_terms(sql)
    ]
    return "\nUNION ALL\n".join(branches)


def _split_bounds(bounds: str) -> tuple[str, str]:
    """Split at the last comma; a function in the lower bound may contain others."""
    low, _, high = bounds.rpartition(",")
    return low.strip(), high.strip()


CHECKS_TABLE = "checks"
_FILE = re.compile(r"(\d{3})_([a-z][a-z0-9_]*?)(\.view|\.parquet)?\.sql")
_PARAMETER = re.compile(r"\$([a-z_]+)")
_KINDS: dict[str | None, Literal["table", "view", "output"]] = {None: "table", ".view": "view", ".parquet": "output"}
_FAMILY_NUMBER = "048"
"""Number of the reward family's file in the order of execution."""
_RANGES_NUMBER = "088"
_PARQUET = "FORMAT parquet, PARQUET_VERSION V2, COMPRESSION zstd, COMPRESSION_LEVEL 3, ROW_GROUP_SIZE 65536"
"""Groups of a set number of rows, in order, so no byte that is hashed depends on how threads share the work."""

OnStatement = Callable[[str], None]


def ignore(_: str) -> None:
    """Do nothing after a statement."""


class Statement(NamedTuple):
    """A numbered SQL file."""

    file: str
    name: str
    """Name of the table or view, or of the Parquet file without its suffix."""
    kind: Literal["table", "view", "output"]
    sql: str


def load_statements(family: str) -> list[Statement]:
    """Return all statements in the order of their numbers, including that of the reward family."""
    numbered = {}
    for entry in files("simic.curation").joinpath("sql").iterdir():
        if match := _FILE.fullmatch(entry.name):
            numbered[match[1]] = Statement(entry.name, match[2], _KINDS[match[3]], entry.read_text("utf-8"))
    sql = family_statement(family)
    numbered[_FAMILY_NUMBER] = Statement(f"rewards/{family}.sql", "family_terms", "view", sql)
    numbered[_RANGES_NUMBER] = Statement("range_violations", "range_violations", "view", range_violations(sql))
    return [numbered[number] for number in sorted(numbered)]


def sql_digest(statements: list[Statement]) -> str:
    """Return the SHA-256 over name and text of every file."""
    return digest_of([[statement.file, statement.sql] for statement in statements])


def create_tables(
    connection: duckdb.DuckDBPyConnection,
    statements: list[Statement],
    parameters: Mapping[str, object],
    on_statement: OnStatement = ignore,
) -> None:
    """Build every table and view in order. Raises ContractError if ``checks`` has a row afterwards.

    A table is dropped after its last reader. ``on_statement`` is called with the name of each file after it ran.
    """
    create_types(connection)
    set_parameters(connection, parameters)
    last_reader = _last_readers(statements)
    for number, statement in enumerate(statements):
        if statement.kind != "output":
            connection.execute(f'CREATE {statement.kind} "{statement.name}" AS\n{substitute_parameters(statement.sql)}')
            for name in last_reader[number]:
                connection.execute(f'DROP TABLE "{name}"')
            on_statement(statement.file)
    violations = connection.execute(f'FROM "{CHECKS_TABLE}" ORDER BY ALL LIMIT 5').fetchall()
    if violations:
        examples = "; ".join(f"{name} ({run_id}, step {step}): {text}" for name, run_id, step, text in violations)
        raise ContractError(
            "curation violated its own invariants, no snapshot was made; this is a bug in the reward SQL or in Simic; "
            f"check the family's `-- term` bounds; the first: {examples}"
        )


def create_types(connection: duckdb.DuckDBPyConnection) -> None:
    """Create enumerations, which take one byte per row where text would take many."""
    for name, members in (("OPERATION", OPS), ("STAGE", STAGES), ("SPLIT", Split)):
        listed = ", ".join(f"'{member.value}'" for member in members)
        connection.execute(f"CREATE TYPE {name} AS ENUM ({listed})")


def _last_readers(statements: list[Statement]) -> dict[int, list[str]]:
    """Return, by index of a statement, the tables whose last reader it is. A view reads when it is queried."""
    named = {statement.name: number for number, statement in enumerate(statements)}
    readers: dict[str, list[Statement]] = {name: [] for name in named}
    for statement in statements:
        words = set(re.findall(r"\w+", substitute_parameters(statement.sql).lower()))
        for name in words & named.keys() - {statement.name}:
            readers[name].append(statement)

    def last(name: str) -> int:
        numbers = [last(each.name) if each.kind == "view" else named[each.name] for each in readers[name]]
        return max(numbers, default=-1)

    tables = defaultdict(list)
    for statement in statements:
        if statement.kind == "table":
            tables[last(statement.name)].append(statement.name)
    return tables


def set_parameters(connection: duckdb.DuckDBPyConnection, parameters: Mapping[str, object]) -> None:
    """Set the variable behind each ``$name`` on this connection."""
    for name, value in parameters.items():
        connection.execute(f"SET VARIABLE {name} = $value", {"value": value})


def write_outputs(
    connection: duckdb.DuckDBPyConnection,
    statements: list[Statement],
    directory: Path,
    on_statement: OnStatement = ignore,
) -> None:
    """Write every output statement to ``<name>.parquet`` in ``directory``."""
    for statement in statements:
        if statement.kind == "output":
            target = str(directory / f"{statement.name}.parquet").replace("'", "''")
            connection.execute(f"COPY (\n{substitute_parameters(statement.sql)}\n) TO '{target}' ({_PARQUET})")
            written = exactly(directory / f"{statement.name}.parquet").replace("'", "''")
            connection.execute(f"CREATE VIEW \"{statement.name}_written\" AS FROM read_parquet('{written}')")
            on_statement(statement.file)


def substitute_parameters(sql: str) -> str:
    """Replace each ``$name`` by a variable of the connection; unlike parameters, views and COPY accept them."""
    code = re.sub(r"--.*", "", sql)
    return _PARAMETER.sub(r"getvariable('\1')", code)
