"""docs/schema.md is current and complete."""

from __future__ import annotations

import tempfile
from pathlib import Path

from simic.catalogue.query import load_views
from simic.catalogue.schema_doc import render
from simic.contracts.field_report import FieldReport
from simic.lake.quarantine import Reason

COMMITTED = Path(__file__).parents[3] / "docs" / "schema.md"


def test_the_committed_file_is_current() -> None:
    assert COMMITTED.read_text("utf-8") == render(), "run: simic schema --markdown > docs/schema.md"


def test_every_column_view_and_reason_is_there() -> None:
    text = render()
    for name in FieldReport.model_fields:
        assert f"| `{name}` |" in text
    for view in load_views():
        assert f"### {view.name}\n" in text
    for reason in Reason:
        assert f"| `{reason.value}` | " in text
    assert "| `malformed_json` | Not JSON" in text


def test_no_meaning_is_empty() -> None:
    tables = [line for line in render().splitlines() if line.startswith("|") and "---" not in line]
    assert len(tables) > 300
    assert [line for line in tables if line.split("|")[-2].strip() == ""] == []


def test_bounds_stand_beside_the_columns_that_have_them() -> None:
    text = render()
    assert "| `step` | int64 | 0 to 100,000 (excluded) |" in text
    assert "| `alpha` | double | 0 to 1 |" in text
    assert "| `key` | int64 | 0 to 2^31 (excluded) |" in text
    assert "| `seeds_max` | int64 | 0 to 10,000,000 |" in text


def test_nothing_of_the_machine_leaks_in() -> None:
    assert tempfile.gettempdir() not in render() and f"{Path.home()}/" not in render()


def test_the_help_of_sql_names_every_view() -> None:
    from simic.cli.sql import sql

    listed = (sql.__doc__ or "").partition("Views: ")[2].partition(". ")[0]
    assert {name.strip() for name in listed.split(",")} == {view.name for view in load_views()}
