"""What landed twice counts once, the row that landed first, and every other row is counted with its reason."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from support.builders.reports import episode, line, plain
from support.builders.snapshots import told_rows
from support.homes.pipeline import NOW, curate_all

from simic.contracts.field_report import FieldReport
from simic.lake.arrow_reader import AcceptedReports, open_arrow_reader
from simic.lake.parts import Part, schema_digest, write_part
from simic.lake.store import LocalParts
from simic.ledgers import PARTS_LEDGER
from simic.ledgers.ledger import Ledger
from simic.runtime.home import Home

Row = Mapping[str, Any]


def commit(home: Home, number: int, rows: Iterable[Row]) -> None:
    """A part in the ledger, past the ingester, which would have refused a report told twice."""
    landed_at = NOW + timedelta(minutes=number)
    reports = [FieldReport.model_validate(row) for row in rows]
    digests = [hashlib.sha256(line(report.model_copy(update={"issued_at": NOW}))).hexdigest() for report in reports]
    landings = AcceptedReports()
    for at, (report, digest) in enumerate(zip(reports, digests, strict=True), 1):
        landings.add(report.report_id, digest, line(report), f"delivery-{number}", at)
    with open_arrow_reader(home.tmp / "columns") as columns:
        table = columns.table(landings, landed_at)
    written = write_part(
        table, store=LocalParts(home.experience), tmp=home.tmp, stem=f"{number}-{number:016x}", landed_at=landed_at,
        checkpoint=lambda _: None,
    )  # fmt: skip
    part = Part(
        part=written.name, rows=len(table), size_bytes=written.size_bytes, sha256=written.sha256,
        sources=[f"delivery-{number}"], schema_digest=schema_digest(table.schema), landed_at=landed_at,
        code_version="test",
    )  # fmt: skip
    Ledger(home.ledger / PARTS_LEDGER).append(part.model_dump(mode="json"))


def told(key: int = 1) -> list[dict[str, Any]]:
    return [plain(report) for report in episode(key)]


def curated(home: Home, *parts: Iterable[Row]) -> tuple[dict[str, int], list[dict[str, Any]]]:
    for number, rows in enumerate(parts):
        commit(home, number, rows)
    manifest = curate_all(home)
    assert manifest.rows_in == manifest.rows_out + sum(manifest.rejected.values())
    return manifest.rejected, told_rows(manifest, "outcome")


def test_told_again_is_a_duplicate(tmp_path: Path) -> None:
    rows = told()
    rejected, steps = curated(Home(tmp_path), rows, rows[3:9], rows[4:5])
    assert rejected == {"duplicate": 7}
    assert [row["report_id"] for row in steps] == [row["report_id"] for row in rows]


def test_told_at_another_hour_is_a_duplicate_too(tmp_path: Path) -> None:
    rows = told()
    again = {**rows[3], "issued_at": (NOW + timedelta(hours=1)).isoformat()}
    assert curated(Home(tmp_path), rows, [again])[0] == {"duplicate": 1}


def test_another_content_under_a_taken_id_is_a_conflict_and_the_first_landed_stays(tmp_path: Path) -> None:
    rows = told()
    other = {**rows[7], "outcome": "REGRESSION"}
    rejected, steps = curated(Home(tmp_path), rows, [other])
    assert rejected == {"conflict": 1}
    assert steps[7]["outcome"] == rows[7]["outcome"]
    rejected, steps = curated(Home(tmp_path / "reverse"), [other], rows)
    assert rejected == {"conflict": 1}
    assert steps[7]["outcome"] == "REGRESSION", "whichever landed first"


def test_the_same_content_under_another_id_is_left_out_and_its_episode_stays(tmp_path: Path) -> None:
    rows = told()
    again = {**rows[7], "report_id": "f" * 32, "issued_at": NOW.isoformat()}
    rejected, steps = curated(Home(tmp_path), rows, [again, {**again, "report_id": "e" * 32}])
    assert rejected == {"same_content": 2}
    assert [row["report_id"] for row in steps] == [row["report_id"] for row in rows]


def test_the_same_step_with_another_content_spoils_the_episode(tmp_path: Path) -> None:
    rows = told()
    other = {**rows[7], "report_id": "f" * 32, "command_id": "e" * 32}
    assert curated(Home(tmp_path), rows, [other])[0] == {"overlap": 21}


def test_all_kinds_at_once_are_counted_apart(tmp_path: Path) -> None:
    rows, others = told(), told(2)
    rejected, steps = curated(
        Home(tmp_path),
        [*rows, *others],
        [rows[0], {**rows[1], "outcome": "SUCCESS"}, {**others[5], "report_id": "a" * 32}],
    )
    assert rejected == {"conflict": 1, "duplicate": 1, "same_content": 1}
    assert len(steps) == 40
