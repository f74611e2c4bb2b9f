"""An ingest's receipt stays true when its parts are merged or dropped, and not when one is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from support.homes import FixedClock, land
from support.lakes import keeper
from support.reports import episodes

from simic.app.doctor import Doctor
from simic.app.intact import is_intact
from simic.bus.spool import SpoolBus
from simic.contracts.receipts import IngestReceipt
from simic.lake.lake import open_lake
from simic.runtime.progress import NoProgress
from simic.runtime.settings import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def receipt(home: Home) -> IngestReceipt:
    return land(home, episodes(range(3)), batch_reports=20)


def intact(receipt: IngestReceipt, home: Home) -> bool:
    return is_intact(receipt, home, cast(Any, None))


def test_what_landed_has_landed(receipt: IngestReceipt, home: Home) -> None:
    assert intact(receipt, home)
    keeper(home).compact()
    keeper(home).vacuum(grace_minutes=0)
    assert intact(receipt, home)
    keeper(home).retain(max_bytes=0)
    keeper(home).vacuum(grace_minutes=0)
    assert intact(receipt, home)


def test_what_is_lost_has_not(receipt: IngestReceipt, home: Home) -> None:
    (home.experience / open_lake(home).parts[1].part).unlink()
    assert not intact(receipt, home)
    spool = SpoolBus(home.spool)
    Doctor(home, spool, lambda: None, code_version="x", clock=FixedClock(), progress=NoProgress()).examine(
        is_repair=True
    )
    assert not intact(receipt, home), "taken out, and not landed again yet"


def test_a_part_that_no_line_names_never_landed(receipt: IngestReceipt, home: Home) -> None:
    (home.ledger / "ingest.jsonl").unlink()
    assert not intact(receipt, home)
