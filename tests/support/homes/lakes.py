"""Housekeeping of a home's lake in tests, and what can be seen of it from outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs as arrow_fs

from simic.catalogue.query import query
from simic.contracts.settings.run import LakeConfig
from simic.lake.lake import open_lake
from simic.lake.maintenance import LakeMaintenance
from simic.lake.store import ArrowParts
from simic.runtime.home import Home
from simic.runtime.progress import NoProgress
from support.homes.pipeline import NOW, PROVENANCE, FixedClock

__all__ = ["COUNT", "maintenance", "report_ids", "shared_store", "stored"]

COUNT = "SELECT count(*) AS n, count(DISTINCT report_id) AS d FROM reports"


def maintenance(home: Home, clock: Any = None, **settings: Any) -> LakeMaintenance:
    """With ``lake.*`` settings."""
    return LakeMaintenance(home, LakeConfig(**settings), PROVENANCE.code_version, clock or FixedClock(), NoProgress())


def report_ids(home: Home) -> list[str]:
    """In the order of the lake."""
    return [row["report_id"] for row in query(home, "SELECT report_id FROM reports")]


def stored(home: Home) -> set[str]:
    """Names of part files, whether they count or not."""
    return set(open_lake(home).store.names())


def shared_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArrowParts:
    """A prefix that every home of the test uses."""
    shared = tmp_path / "prefix"
    (shared / f"{NOW:%Y-%m-%d}").mkdir(parents=True)
    store = ArrowParts(arrow_fs.SubTreeFileSystem(str(shared), arrow_fs.LocalFileSystem()), "test://store")
    monkeypatch.setattr("simic.lake.lake.connect_store", lambda _url: store)
    return store
