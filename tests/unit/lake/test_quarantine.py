"""What is refused is kept, within a budget."""

from __future__ import annotations

import hashlib
import random
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from simic.lake.quarantine import QUARANTINE_SCHEMA, Quarantine, QuarantineEntry, Reason

NOW = datetime(2026, 1, 6, tzinfo=UTC)


def entry(line: int, size_bytes: int = 10_000) -> QuarantineEntry:
    raw = random.Random(line).randbytes(size_bytes)  # noqa: S311
    digest = hashlib.sha256(raw).hexdigest()
    return QuarantineEntry(
        quarantine_id=hashlib.sha256(f"{line}{digest}".encode()).hexdigest(),
        reason=Reason.MALFORMED_JSON,
        message="not JSON",
        source="file",
        line=line,
        report_id=None,
        size_bytes=size_bytes,
        raw_sha256=digest,
        raw=raw,
        seen_at=NOW,
    )


def kept(directory: Path) -> dict[int, dict[str, object]]:
    rows = [row for path in directory.glob("*.parquet") for row in pq.read_table(path).to_pylist()]
    return {row["line"]: row for row in rows}


def test_entries_come_back_as_they_were(tmp_path: Path) -> None:
    entries = [entry(1), entry(2).model_copy(update={"report_id": "a" * 32, "raw": b"\x00\xff"})]
    assert Quarantine(tmp_path / "q", tmp_path / "tmp", 1_000_000).write(entries) == 0
    (path,) = (tmp_path / "q").iterdir()
    assert pq.read_schema(path).equals(QUARANTINE_SCHEMA)
    rows = kept(tmp_path / "q")
    assert [QuarantineEntry.model_validate(rows[line]) for line in (1, 2)] == entries


def test_a_flood_loses_its_bytes_then_its_rows(tmp_path: Path) -> None:
    """PD-5: the dead letters of a flood fill no disk."""
    quarantine = Quarantine(tmp_path / "q", tmp_path / "tmp", 95_000)
    dropped = [quarantine.write([entry(10 * batch + n) for n in range(5)]) for batch in range(4)]
    assert dropped == [0, 1, 5, 5]
    rows = kept(tmp_path / "q")
    assert sorted(rows) == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14, 20, 30]
    assert rows[14]["message"] == "not JSON"
    assert rows[20]["message"] == rows[30]["message"] == "5 lines of the batch, the first: not JSON"
    for line, row in rows.items():
        assert row["raw"] in (entry(line).raw, b"")
        assert (row["reason"], row["size_bytes"], row["raw_sha256"]) == (
            "malformed_json",
            10_000,
            entry(line).raw_sha256,
        )
    assert sum(path.stat().st_size for path in (tmp_path / "q").iterdir()) < 95_000 + 20_000


def test_a_full_quarantine_grows_by_batches_and_not_by_lines(tmp_path: Path) -> None:
    """PD-5: a few kB of compressed garbage are millions of lines."""
    flood = [entry(line, 1) for line in range(2_000)]
    other = [entry(9_000, 1).model_copy(update=change) for change in ({"source": "other"}, {"reason": Reason.TORN})]
    assert Quarantine(tmp_path / "q", tmp_path / "tmp", 0).write([*flood, *other]) == 2_002
    (path,) = (tmp_path / "q").iterdir()
    rows = pq.read_table(path).to_pylist()
    assert [(row["source"], row["reason"], row["message"].split()[0]) for row in rows] == [
        ("file", "malformed_json", "2000"),
        ("other", "malformed_json", "1"),
        ("file", "torn", "1"),
    ]
    assert path.stat().st_size < 10_000


def test_a_flood_of_batches_is_counted_only_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file for each batch would fill a disk too, and each would slow the view."""
    monkeypatch.setattr("simic.lake.quarantine.SUMMARIES_BYTES", 20_000)
    for batch in range(40):  # a later ingest goes on where the one before was
        assert Quarantine(tmp_path / "q", tmp_path / "tmp", 0).write([entry(batch, 1)]) == 1
    files = list((tmp_path / "q").iterdir())
    assert 20_000 <= sum(path.stat().st_size for path in files) < 30_000
    assert len(files) == 40 - sum("only counted" in record.message for record in caplog.records) < 20


def test_room_is_what_earlier_runs_left(tmp_path: Path) -> None:
    for number, expected in enumerate([0, 1, 1]):
        quarantine = Quarantine(tmp_path / "q", tmp_path / "tmp", 15_000)
        assert quarantine.write([entry(number)]) == expected


def test_the_same_refusals_again_change_nothing(tmp_path: Path) -> None:
    entries = [entry(1), entry(2)]
    assert Quarantine(tmp_path / "q", tmp_path / "tmp", 100_000).write(entries) == 0
    before = kept(tmp_path / "q")
    assert Quarantine(tmp_path / "q", tmp_path / "tmp", 0).write(entries) == 0
    assert kept(tmp_path / "q") == before


def test_a_long_line_that_finds_no_room_does_not_cost_a_short_one_its_bytes(tmp_path: Path) -> None:
    quarantine = Quarantine(tmp_path / "q", tmp_path / "tmp", 12_000)
    assert quarantine.write([entry(1), entry(2), entry(3, 100)]) == 1
    assert [bool(row["raw"]) for _, row in sorted(kept(tmp_path / "q").items())] == [True, False, True]
