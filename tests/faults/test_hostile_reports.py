"""A flood of hostile lines: none crashes the ingest, none gets in, and no good report among them is lost or doubled."""

from __future__ import annotations

import itertools
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from support.builders.reports import BLUEPRINTS
from support.faults.hostile_reports import Fate, HostileLine, hostile_lines
from support.homes.pipeline import NOW, TOPIC, ingest_all

from simic.bus.spool.bus import SpoolBus
from simic.catalogue.query import query
from simic.contracts.consistency import find_contradiction
from simic.contracts.field_report import FieldReport
from simic.contracts.settings.run import IngestConfig
from simic.lake.quarantine import Reason
from simic.runtime.home import Home

EARLIEST, LATEST = NOW - timedelta(days=3650), NOW + timedelta(days=1)
COUNT = 100_000
DELIVERY = 5000


@pytest.mark.timeout(900)
def test_a_hundred_thousand_hostile_reports(tmp_path: Path) -> None:
    """PD-5: every bad line is in the quarantine with its reason, every good one landed once."""
    home, bus, oracle = Home(tmp_path), SpoolBus(tmp_path / "data" / "spool"), Oracle()
    lines = hostile_lines(COUNT, seed=7)
    for number in range(COUNT // DELIVERY):
        delivery = list(itertools.islice(lines, DELIVERY))
        source = bus.put(TOPIC, f"flood-{number:04d}", [each.data for each in delivery])
        for place, each in enumerate(delivery, 1):
            oracle.tell(each, (source, place))
    receipt = ingest_all(home)
    assert receipt.read == receipt.landed + receipt.duplicate + receipt.quarantined == COUNT
    assert bus.pending(TOPIC) == 0
    landed = query(home, "SELECT report_id, source, line FROM reports")
    assert {row["report_id"]: (row["source"], row["line"]) for row in landed} == oracle.landed
    assert len(landed) == len(oracle.landed) == receipt.landed > 5_000
    kept = query(home, "SELECT source, line, reason = 'duplicate' AS told_again, message FROM quarantine")
    assert {(row["source"], row["line"]): row["told_again"] for row in kept} == oracle.kept
    assert len(kept) == len(oracle.kept) == receipt.quarantined + receipt.duplicate
    assert all(row["message"] for row in kept)
    of_files = {"torn", "unreadable", "given_up"}
    assert set(receipt.reasons) == {reason.value for reason in Reason} - {"duplicate"} - of_files


class Oracle:
    """What must become of each line, by the contract and a dictionary."""

    def __init__(self) -> None:
        self.landed: dict[str, tuple[str, int]] = {}
        self.kept: dict[tuple[str, int], bool] = {}
        """Place of every refused line, and whether it only repeats one that landed."""
        self._contents: dict[str, int] = {}

    def tell(self, each: HostileLine, place: tuple[str, int]) -> None:
        report = accepted(each.data)
        assert each.fate is Fate.JUDGE or (report is None) is (each.fate is Fate.REFUSE), each
        if report is None:
            self.kept[place] = False
            return
        content = hash(report.model_dump_json(exclude={"issued_at"}))
        if report.report_id in self.landed:
            self.kept[place] = self._contents[report.report_id] == content
        else:
            self.landed[report.report_id], self._contents[report.report_id] = place, content


def once(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a field twice")


def accepted(data: bytes) -> FieldReport | None:
    if len(data) > IngestConfig().max_report_bytes:
        return None
    try:
        report = FieldReport.model_validate_json(data, strict=True)
        json.loads(data, object_pairs_hook=once)
    except (ValidationError, ValueError):
        return None
    if find_contradiction(report) is not None or not EARLIEST <= report.issued_at <= LATEST:
        return None
    states = [report.state] if report.final_state is None else [report.state, report.final_state]
    named = {report.blueprint_id, report.action.blueprint, *report.available.blueprint}
    named |= {slot.blueprint for state in states for slot in state.slots}
    return report if named <= {None, *BLUEPRINTS} else None
