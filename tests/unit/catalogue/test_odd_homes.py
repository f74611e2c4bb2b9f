"""DuckDB takes ``*``, ``?`` and ``[`` in a path for a pattern: a home of such a name must not read its own copies."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.builders.reports import episodes, line
from support.homes.pipeline import curate_all, ingest_all, land

from simic.bus.spool.bus import SpoolBus
from simic.catalogue.query import query
from simic.runtime.home import Home
from simic.snapshots.parts import read_rows
from simic.snapshots.verify import check_snapshot


@pytest.mark.parametrize("name", ["a?b", "a*b", "a[x]b", "a[xb", "a?b#%41\nc"])
def test_a_home_reads_its_own_files_only_whatever_its_name(tmp_path: Path, name: str) -> None:
    home, neighbour = Home(tmp_path / name), tmp_path / name.replace("[x]", "x").translate(str.maketrans("?*", "xx"))
    land(home, episodes(range(3)))
    if neighbour != home.root:
        shutil.copytree(home.root, neighbour)  # its files have the same names
    SpoolBus(home.spool).put("tamiyo.field_reports", "again", map(line, episodes(range(4))))
    assert ingest_all(home).landed == 20, "three of the four were told before"
    manifest = curate_all(home)
    assert (manifest.rows_in, manifest.rows_out) == (80, 80)
    if neighbour != home.root:
        shutil.rmtree(neighbour)
        shutil.copytree(home.root, neighbour)
    (tmp_path / "tmp").mkdir()
    assert check_snapshot(Path(manifest.path), tmp=tmp_path / "tmp").damage == []
    batches = read_rows(manifest, "train", ["run_id"], ["report_id"], batch_rows=1000)
    assert sum(batch.num_rows for batch in batches) == 20 * manifest.episodes["train"]
    assert query(home, "SELECT count(*) AS n FROM reports") == [{"n": 80}]
    assert query(home, "SELECT count(*) AS n FROM steps") == [{"n": 80}]
    assert query(home, "SELECT path FROM snapshots") == [{"path": manifest.path}]
