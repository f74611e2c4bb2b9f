"""Housekeeping of a home's lake in tests, and what can be seen of it from outside."""

from __future__ import annotations

from typing import Any

from simic.catalogue.query import query
from simic.contracts.config import LakeConfig
from simic.lake.lake import open_lake
from simic.lake.maintenance import LakeMaintenance
from simic.runtime.progress import NoProgress
from simic.runtime.settings import Home
from support.homes.pipeline import PROVENANCE, FixedClock

__all__ = ["COUNT", "maintenance", "report_ids", "stored"]

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
