"""Too little memory is one terminal error wherever DuckDB meets it, and no word against the data."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.builders.reports import episode, episodes, line
from support.homes.pipeline import NOW, curate_all, land

from simic.catalogue.query import build_catalogue
from simic.contracts.errors import ResourceLimitError, TransientError
from simic.lake.arrow_reader import AcceptedReports, ArrowReader
from simic.lake.dedup import DedupIndex
from simic.lake.duck import connect
from simic.runtime.home import Home
from simic.snapshots.verify import check_snapshot

TINY = "SET memory_limit = '10KB'"
HUNGRY = "SELECT len(list(range)) FROM range(100000000)"


def test_duckdb_out_of_memory_is_terminal_and_names_limit_and_remedy(tmp_path: Path) -> None:
    with (
        pytest.raises(ResourceLimitError, match=r"counting needs more .* 32 MB .*; count less$") as caught,
        connect(tmp=tmp_path, memory_limit_mb=32, threads=1, what="counting", remedy="count less") as connection,
    ):
        connection.execute(HUNGRY).fetchall()
    assert not isinstance(caught.value, TransientError), "nothing tries it again"
    assert "SET " not in str(caught.value)


def test_temporary_disk_has_an_end_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB shows the setting however it is given, but keeps to it only if it is given in one way."""
    monkeypatch.setattr("simic.lake.duck._TMP_LIMIT_MB", 50)
    wide = ", ".join(f"hash(range + {column})" for column in range(24))
    with (
        pytest.raises(ResourceLimitError, match=r"50 MB of temporary disk: .*offload"),
        connect(tmp=tmp_path, memory_limit_mb=64, threads=1) as connection,
    ):
        connection.execute(f"SELECT {wide} FROM range(3000000) ORDER BY hash(range)").fetchone()  # noqa: S608


def test_neither_reports_nor_parts_nor_snapshots_are_blamed_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, reports = Home(tmp_path), [line(report) for report in episodes(range(3))]
    land(home, episode(1))
    manifest = curate_all(home)
    part, count = next(home.experience.glob("*/*.parquet")), len(reports)
    rows = AcceptedReports(["x"] * count, ["y"] * count, reports, ["z"] * count, [1] * count)
    with pytest.raises(ResourceLimitError), connect(tmp=tmp_path / "a", memory_limit_mb=64, threads=1) as connection:
        reader = ArrowReader(connection)
        connection.execute(TINY)
        reader.table(rows, NOW)
    with pytest.raises(ResourceLimitError), connect(tmp=tmp_path / "b", memory_limit_mb=64, threads=1) as connection:
        index = DedupIndex(connection, [])
        connection.execute(TINY)
        index.add([part])
    monkeypatch.setattr("simic.snapshots.verify._MEMORY_LIMIT_MB", 0.01)
    with pytest.raises(ResourceLimitError):
        check_snapshot(Path(manifest.path), tmp=tmp_path / "c")
    monkeypatch.setattr("simic.catalogue.query._MEMORY_LIMIT_MB", 0.01)
    with pytest.raises(ResourceLimitError):
        build_catalogue(home)
