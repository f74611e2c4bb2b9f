"""Landed reports are recognised, wherever they landed."""

from __future__ import annotations

from pathlib import Path

from support.homes import land
from support.reports import episode, episodes

from simic.lake.ledger import Ledger
from simic.lake.parts import committed_parts
from simic.lake.seen import open_seen
from simic.runtime.settings import Home


def test_ids_of_committed_parts_are_found_with_their_place(tmp_path: Path) -> None:
    home = Home(tmp_path)
    land(home, episodes(range(3)), batch_reports=20)
    paths = [home.experience / part.part for part in committed_parts(Ledger(home.ledger / "ingest.jsonl"))]
    old, new = [report.report_id for report in episode(2)], [report.report_id for report in episode(9)]
    with open_seen(paths[:2], tmp_path / "tmp") as seen:
        assert seen.find(old + new) == {}
        seen.add(paths[2:])
        found = seen.find(old + new)
    assert set(found) == set(old)
    assert found[old[5]].line == 46
    assert found[old[5]].source.startswith("reports-")


def test_nothing_landed_means_nothing_seen(tmp_path: Path) -> None:
    with open_seen([], tmp_path) as seen:
        assert seen.find([episode(1)[0].report_id]) == {}
