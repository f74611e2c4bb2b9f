"""docs/schema.md is current and complete."""

from __future__ import annotations

import tempfile
from pathlib import Path

from simic.contracts.field_report import FieldReport
from simic.lake.quarantine import Reason
from simic.lake.schema_doc import render
from simic.lake.views import load_views

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


def test_nothing_of_the_machine_leaks_in() -> None:
    assert tempfile.gettempdir() not in render() and f"{Path.home()}/" not in render()
