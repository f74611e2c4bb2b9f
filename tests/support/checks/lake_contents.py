"""What has landed in a home, seen without any of the views: the ledger, the files it lists, and what lies around."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from simic.bus.spool.bus import SpoolBus
from simic.contracts.names import FIELD_REPORTS
from simic.lake.parts import Part, check_part, committed_parts
from simic.lake.store import LocalParts
from simic.ledgers import PARTS_LEDGER
from simic.ledgers.ledger import Ledger
from simic.runtime.home import Home
from simic.snapshots.index import folders

__all__ = ["Surroundings", "ledger_of", "parts_of", "report_ids", "surroundings"]


def ledger_of(home: Home) -> Path:
    """The file whose lines are the commits."""
    return home.ledger / PARTS_LEDGER


def parts_of(home: Home) -> list[Part]:
    """Committed parts, in order."""
    return committed_parts(Ledger(ledger_of(home)))


def report_ids(home: Home) -> list[str]:
    """Of all committed rows, from parts that are as they were committed."""
    ids: list[str] = []
    for part in parts_of(home):
        check_part(LocalParts(home.experience), part)
        path = home.experience / part.part
        ids += pq.read_table(path, columns=["report_id"], partitioning=None)["report_id"].to_pylist()
    return ids


class Surroundings(NamedTuple):
    """Where things lie; plain enough to be told by a process to another."""

    listed: list[str]
    """Part files that the ledger lists."""
    on_disk: list[str]
    """Part files there are."""
    pending: int
    """Deliveries not acknowledged."""
    unfinished: list[str]
    """Parquet files that an ingest did not finish."""
    snapshots: list[str]
    tmp: list[str]
    """Whatever lies in the home's tmp."""


def surroundings(home: Home) -> Surroundings:
    """As they are now."""
    return Surroundings(
        listed=sorted(part.part for part in parts_of(home)),
        on_disk=sorted(path.relative_to(home.experience).as_posix() for path in home.experience.rglob("*.*")),
        pending=SpoolBus(home.spool).pending(FIELD_REPORTS),
        unfinished=sorted(path.name for path in (home.tmp / "ingest").rglob("*.parquet")),
        snapshots=[path.name for path in folders(home)],
        tmp=sorted(path.name for path in home.tmp.glob("*")),
    )
