"""`simic sql --csv` and `--parquet`: every row of the answer and no other, complete or no file."""

from __future__ import annotations

import csv
import io
import json
import os
import stat
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.builders.reports import episodes
from support.homes.pipeline import curate_all, land
from support.servers.forked_commands import run_command

from simic.catalogue.export import export_csv, export_parquet, write_csv
from simic.catalogue.query import build_catalogue, write_parquet
from simic.catalogue.query_process import Limits
from simic.contracts.errors import ConfigError, ResourceLimitError
from simic.runtime.home import Home

TEXT = (Path(__file__).parents[3] / "docs" / "data.md").read_text("utf-8")


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = Home(tmp_path_factory.mktemp("home"))
    home.create()
    land(home, episodes(range(4)))
    curate_all(home)
    return home


def simic(home: Home, *arguments: object) -> subprocess.CompletedProcess[str]:
    return run_command("--home", str(home.root), *map(str, arguments))


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
ROWS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
        st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False)),
        st.one_of(st.none(), TEXTS),
        st.one_of(st.none(), st.booleans()),
        st.one_of(st.none(), st.lists(TEXTS, max_size=3)),
    ),
    max_size=6,
)
KINDS = ("BIGINT", "DOUBLE", "VARCHAR", "BOOLEAN", "VARCHAR[]")


def literal(value: Any, kind: str) -> str:
    if value is None:
        return f"NULL::{kind}"
    if isinstance(value, list):
        return f"[{', '.join(literal(item, 'VARCHAR') for item in value)}]::{kind}"
    text = repr(value) if isinstance(value, float) else str(value)
    return "'" + text.replace("'", "''") + f"'::{kind}"


def as_sql(rows: list[tuple[Any, ...]]) -> str:
    empty = ", ".join(f"NULL::{kind} AS {name}" for name, kind in zip("abcde", KINDS, strict=True))
    lines = [", ".join(map(literal, row, KINDS)) for row in rows]
    selects = [f"SELECT {number} AS position, {line}" for number, line in enumerate(lines)]
    union = " UNION ALL ".join([f"SELECT NULL AS position, {empty} WHERE false", *selects])
    return f"SELECT * EXCLUDE (position) FROM ({union}) ORDER BY position"  # noqa: S608


@settings(max_examples=40, deadline=None)
@given(ROWS)
def test_parquet_rows_out_are_the_rows_in(
    full: Home, tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[Any, ...]]
) -> None:
    lake, sink = build_catalogue(full), io.BytesIO()
    count = write_parquet(lake, full.catalogue, as_sql(rows), tmp_path_factory.mktemp("tmp"), 256, sink)
    table = pq.read_table(io.BytesIO(sink.getvalue()))
    assert [tuple(row.values()) for row in table.to_pylist()] == rows
    assert (count, table.column_names) == (len(rows), list("abcde"))


@given(ROWS)
def test_csv_rows_out_are_the_rows_in(rows: list[tuple[Any, ...]]) -> None:
    """Python's own reader gets every value back; NULL and an empty text differ by the quotes."""
    sink = io.StringIO()
    assert write_csv(list("abcde"), [dict(zip("abcde", row, strict=True)) for row in rows], sink) == len(rows)
    lines = list(csv.reader(io.StringIO(sink.getvalue(), newline="")))
    assert lines[0] == list("abcde")
    expected = [
        ["" if v is None else v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in row]
        for row in rows
    ]
    assert lines[1:] == expected
    assert sink.getvalue().count('""') >= sum(value == "" for row in rows for value in row)


def test_a_column_of_null_keeps_its_rows() -> None:
    """A blank line is no row to readers of CSV."""
    sink = io.StringIO()
    assert write_csv(["a"], [{"a": value} for value in (None, "", 1)], sink) == 3
    assert sink.getvalue() == 'a\n""\n""\n1\n'
    assert len(pd.read_csv(io.StringIO(sink.getvalue()))) == 3


def test_types_survive_in_parquet(full: Home, tmp_path: Path) -> None:
    sql = """SELECT 1.50::DECIMAL(9, 2) AS d, TIMESTAMPTZ '2026-01-05 01:02:03Z' AS t, {'a': [1, NULL]} AS s,
        MAP {'k': 1.5} AS m, 1 AS a, 2 AS a, '\\xFF'::BLOB AS b"""
    target = tmp_path / "t.parquet"
    assert export_parquet(full, sql, Limits(), target) == 1
    (row,) = pq.read_table(target).to_pylist()
    assert (str(row["d"]), row["s"], row["m"], row["b"]) == ("1.50", {"a": [1, None]}, [("k", 1.5)], b"\xff")
    assert row["t"].astimezone(UTC) == datetime(2026, 1, 5, 1, 2, 3, tzinfo=UTC)
    assert (row["a"], row["a_1"]) == (1, 2)
    with pytest.raises(ConfigError, match=r"column i has type.*cast it"):
        export_parquet(full, "SELECT INTERVAL 1 DAY AS i", Limits(), tmp_path / "i.parquet")
    assert files_in(tmp_path) == ["t.parquet"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("'infinity'::TIMESTAMP_S", "Parquet has no place for a value"),
        ("340282366920938463463374607431768211455::UHUGEINT", "column x has type UHUGEINT"),
        ("TIMETZ '10:00:00+02'", "column x has type TIME WITH TIME ZONE"),
        ("'101'::BIT", "column x has type BIT"),
        ("1::BIGNUM", "column x has type BIGNUM"),
        ("[340282366920938463463374607431768211455::UHUGEINT]", r"column x has type UHUGEINT\[\]"),
        ("{'a': MAP {'k': TIMETZ '10:00:00+02'}}", "TIME WITH TIME ZONE.*cast it, as in x::VARCHAR"),
        ("array_value('101'::BIT)", r"column x has type BIT\[1\]"),
        ("{'a': [INTERVAL 3 MONTH]}", "INTERVAL.*which Parquet lacks"),
        ("[union_value(a := 1)]", "UNION.*which Parquet lacks"),
        ("MAP {}", "Parquet has no place for a value"),
    ],
)
def test_what_parquet_would_change_is_refused(full: Home, tmp_path: Path, value: str, message: str) -> None:
    lake, target = build_catalogue(full), io.BytesIO()
    with pytest.raises(ConfigError, match=message):
        write_parquet(lake, full.catalogue, f"SELECT {value} AS x", tmp_path, 256, target)


def test_files_hold_every_row_and_limits_hold(full: Home, tmp_path: Path) -> None:
    many = "SELECT range AS n, 'x' || range AS x FROM range(30000)"
    for name in ("rows.csv", "rows.parquet"):
        done = simic(full, "sql", f"--{name[5:]}", tmp_path / name, many)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        assert f"wrote 30,000 rows to {tmp_path / name}" in done.stderr
    by_csv, by_parquet = pd.read_csv(tmp_path / "rows.csv"), pd.read_parquet(tmp_path / "rows.parquet")
    assert list(by_csv["n"]) == list(by_parquet["n"]) == list(range(30000))
    assert list(by_csv["x"]) == list(by_parquet["x"])
    few = simic(full, "sql", "--csv", "-", "--limit", "2", many)
    assert (few.returncode, few.stdout) == (0, "n,x\n0,x0\n1,x1\n")
    assert simic(full, "sql", "--parquet", tmp_path / "few.parquet", "--limit", "2", many).returncode == 0
    assert pq.read_table(tmp_path / "few.parquet").num_rows == 2
    assert simic(full, "sql", "--csv", "-", "SELECT 1 AS a WHERE false").stdout == "a\n"
    assert simic(full, "sql", "--csv", "-", "--limit", "0", "FROM range(2)").stdout == "range\n0\n1\n"


def test_an_existing_file_stays_unless_replacing_is_asked_for(full: Home, tmp_path: Path) -> None:
    for kind in ("csv", "parquet"):
        target = tmp_path / f"rows.{kind}"
        target.write_text("mine")
        target.chmod(0o600)
        done = simic(full, "sql", f"--{kind}", target, "SELECT 1 AS a")
        assert (done.returncode, target.read_text()) == (2, "mine")
        assert f"{target} exists" in done.stderr and "--overwrite" in done.stderr
        assert simic(full, "sql", f"--{kind}", target, "SELECT 1 AS a", "--overwrite").returncode == 0
        assert stat.S_IMODE(target.stat().st_mode) == 0o600, "replaced, and still private"
    assert (tmp_path / "rows.csv").read_text() == "a\n1\n"
    assert pq.read_table(tmp_path / "rows.parquet").to_pylist() == [{"a": 1}]


def test_a_query_that_fails_leaves_no_file_and_keeps_the_old_one(full: Home, tmp_path: Path) -> None:
    old = tmp_path / "old.csv"
    old.write_text("old")
    late = "SELECT CASE WHEN range = 50000 THEN error('late') ELSE 1 END AS a FROM range(60000)"
    for export, name in ((export_csv, "new.csv"), (export_parquet, "new.parquet")):
        for sql in (late, "FROM nowhere", "DROP VIEW steps"):
            with pytest.raises(ConfigError):
                export(full, sql, Limits(), tmp_path / name)
    with pytest.raises(ConfigError):
        export_csv(full, late, Limits(), old, overwrite=True)
    with pytest.raises(ResourceLimitError, match="--timeout"):
        export_parquet(full, "FROM range(1000000000000)", Limits(timeout_s=0.5), tmp_path / "slow.parquet")
    assert files_in(tmp_path) == ["old.csv"] and old.read_text() == "old"


def test_targets_that_are_no_files_are_usage_errors(full: Home, tmp_path: Path) -> None:
    for words in (
        ("--csv", tmp_path), ("--csv", tmp_path / "no" / "a.csv"), ("--parquet", "-"), ("--csv", "-", "--json"),
        ("--overwrite",), ("--csv", "/dev/null", "--overwrite"),
    ):  # fmt: skip
        done = simic(full, "sql", "SELECT 1", *words)
        assert (done.returncode, done.stdout) == (2, ""), words
    assert files_in(tmp_path) == []


def blocks(kind: str) -> list[str]:
    """The fenced blocks of docs/data.md."""
    return [part.split("```", 1)[0] for part in TEXT.split(f"```{kind}\n")[1:]]


def test_every_example_of_the_page_runs(full: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order, in the folder of a home; those for a library that is not installed are left out."""
    monkeypatch.chdir(full.root)
    monkeypatch.setenv("SIMIC_HOME", str(full.root))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    shell = subprocess.run(["bash", "-ec", "\n".join(blocks("sh"))], capture_output=True, text=True, check=False)
    assert shell.returncode == 0, shell.stderr
    assert shell.stdout.startswith("family,episodes\n")
    assert len(pd.read_csv("episodes.csv")) == 4
    assert len(pd.read_parquet("steps.parquet")) == 80
    names: dict[str, Any] = {}
    skipped = []
    for block in blocks("python"):
        try:
            exec(compile(block, "docs/data.md", "exec"), names)  # noqa: S102
        except ModuleNotFoundError as error:
            skipped.append(error.name)
    assert set(skipped) <= {"polars"}
    assert len(blocks("python")) >= 8
    assert len(names["reports"]) == 80 and len(names["live"]) == 1
    assert str(names["reports"]["day"].iloc[0]) == "2026-01-06"
    assert len(names["episodes"]) == 4 and len(names["rewards"]) == 80


def test_pandas_reads_the_folder_of_the_lake(full: Home) -> None:
    frame = pd.read_parquet(full.experience)
    assert len(frame) == 80 and frame["report_id"].is_unique
