"""``simic sql`` and ``simic schema``: queries over the views, and the contracts by name."""

from __future__ import annotations

import sys
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simic.catalogue.contract_schemas import contract_names, example_of, schema_of
from simic.catalogue.export import export_csv, export_parquet
from simic.catalogue.query_process import Limits, ask
from simic.cli.console import EXIT_CODES, emit, stderr, stdout, stream_rows
from simic.cli.options import AsJson, number, open_container, whole_number
from simic.cli.tables import rows_table
from simic.contracts.errors import ConfigError
from simic.runtime.home import HomeUse

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["add_to"]

SHOWN_ROWS = 1000
"""Rows that are shown without ``--limit``; also the rows of one table."""
PAGE_CHARACTERS = 1 << 20
"""Characters after which a table ends: a table is in memory as a whole."""
STDOUT = "-"


def add_to(app: typer.Typer) -> None:
    """Register the verbs."""
    app.command("sql", epilog=EXIT_CODES)(sql)
    app.command("schema", epilog=EXIT_CODES)(schema)


def sql(
    query: Annotated[str, typer.Argument(help="One SELECT over the views.")],
    limit: Annotated[
        int | None,
        whole_number(
            least=0,
            about=f"Largest number of rows, 0 for all; default: {SHOWN_ROWS} on screen, all with --json, --csv or "
            "--parquet.",
        ),
    ] = None,
    csv: Annotated[
        str | None, typer.Option("--csv", metavar="FILE", help="Write the rows to a CSV file; - is stdout.")
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", metavar="FILE", help="Write the rows to a Parquet file.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")] = False,
    timeout: Annotated[
        float, number(least=0.1, most=86_400, about="Seconds that the query may take, excluding output.")
    ] = Limits().timeout_s,
    memory_mb: Annotated[
        int,
        whole_number(
            least=64, most=1_048_576, about="Memory of the query in MB; its temporary files may take 8 times as much."
        ),
    ] = Limits().memory_mb,
    as_json: AsJson = False,
) -> None:
    """Query the home: reports, episodes, rewards, trials, policies, gate decisions.

    Views: reports, steps, episodes, decisions, rewards, snapshots, policies, gates, quarantine, trainings, rejected,
    curves, trials, trial_episodes, judgements, judging_episodes, updates, update_reports, report_updates, telemetry,
    slo_violations. docs/schema.md lists their columns, docs/queries.md has worked examples.

    A table that is wider than the screen has one line per value instead. Tables show fractions between 0.0001 and a
    million with six significant digits; --json, --csv and --parquet have all.

    --json, --csv and --parquet stream every row in bounded memory. A file appears complete or not at all. In CSV, NULL
    is an empty field, and "" in a single column.

    A query that exceeds --timeout or --memory-mb ends with exit code 1.

    Example: [bold]simic sql --csv episodes.csv "FROM episodes"[/bold]
    """
    limits = Limits(timeout, memory_mb)
    if sum((as_json, csv is not None, parquet is not None)) > 1:
        raise ConfigError("--json, --csv and --parquet exclude each other: give one of them")
    if overwrite and csv is None and parquet is None:
        raise ConfigError("--overwrite needs --csv FILE or --parquet FILE")
    if csv is not None:
        _write_csv(query, limits, csv, limit or None, overwrite=overwrite)
        return
    if parquet is not None:
        _write_parquet(query, limits, parquet, limit or None, overwrite=overwrite)
        return
    most = (0 if as_json else SHOWN_ROWS) if limit is None else limit
    with closing(ask(open_container(use=HomeUse.LOOK).home, query, limits)) as rows:
        wanted = islice(rows, most or None)
        if as_json:
            stream_rows(wanted)
        else:
            _show_rows(wanted)
        if most and next(rows, None) is not None:
            stderr().print(f"more than {most:,} rows: --limit 0 shows all; --json, --csv and --parquet write all")


def _write_csv(query: str, limits: Limits, target: str, limit: int | None, *, overwrite: bool) -> None:
    home = open_container(use=HomeUse.LOOK).home
    if target == STDOUT:
        export_csv(home, query, limits, sys.stdout, limit=limit)
        sys.stdout.flush()
        return
    count = export_csv(home, query, limits, Path(target), limit=limit, overwrite=overwrite)
    stderr().print(f"wrote {count:,} rows to {target}")


def _write_parquet(query: str, limits: Limits, target: Path, limit: int | None, *, overwrite: bool) -> None:
    if str(target) == STDOUT:
        raise ConfigError("--parquet needs the name of a file: Parquet cannot be written to stdout; --csv - can")
    home = open_container(use=HomeUse.LOOK).home
    count = export_parquet(home, query, limits, target, limit=limit, overwrite=overwrite)
    stderr().print(f"wrote {count:,} rows to {target}")


def _show_rows(rows: Iterator[dict[str, Any]]) -> None:
    """Print one table per page: the widths of a table follow from all of its rows."""
    console, page, size, is_empty = stdout(), [], 0, True
    for row in rows:
        is_empty = False
        page.append(row)
        size += sum(len(str(value)) for value in row.values())
        if len(page) == SHOWN_ROWS or size >= PAGE_CHARACTERS:
            console.print(rows_table(page))
            page, size = [], 0
    if is_empty:
        console.print("no rows")
    elif page:
        console.print(rows_table(page))


def schema(
    name: Annotated[str | None, typer.Argument(help="Name of a contract; without one, all names are listed.")] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print columns and views, as in docs/schema.md.")
    ] = False,
    example: Annotated[bool, typer.Option("--example", help="Print a valid example instead of the schema.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the JSON schema of a contract, or an example of it.

    Example: [bold]simic schema FieldReport --example[/bold]
    """
    if markdown and (as_json or example or name is not None):
        raise ConfigError("--markdown prints all contracts of reports and all views: give it alone")
    if example and name is None:
        raise ConfigError("--example needs the name of a contract, such as FieldReport; `simic schema` lists them")
    if markdown:
        from simic.catalogue.schema_doc import render

        sys.stdout.write(render())
    elif name is None:
        emit(contract_names(), as_json, lambda console: console.print("\n".join(contract_names())))
    else:
        emit(example_of(name) if example else schema_of(name), True, lambda _: None)
