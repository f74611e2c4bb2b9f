"""Refusals never cost good reports: what was not read, or was judged by a wrong clock, is kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.builders.reports import BLUEPRINTS, episode, line
from support.homes.pipeline import NOW, PROVENANCE, FixedClock, drop, ingest_all
from support.servers.redis_buses import TOPIC, stream_bus
from support.servers.redis_server import RedisProcess

from simic.contracts.settings.run import IngestConfig
from simic.ingestion.ingest import ingest
from simic.runtime.home import Home


def test_good_reports_after_too_many_refusals_of_one_redis_delivery_land(tmp_path: Path) -> None:
    """Acknowledged, an entry of the stream is gone: what was not read would be lost without a word."""
    good = [line(report) for report in episode(1)]
    with RedisProcess(tmp_path / "redis") as server:
        bus = stream_bus(server, batch=100)
        bus.put(TOPIC, "a", [b"{}"] * 10 + good)
        receipt = ingest(
            bus, Home(tmp_path / "home"), IngestConfig(max_file_refusals=5), frozenset(BLUEPRINTS),
            provenance=PROVENANCE, clock=FixedClock(),
        )  # fmt: skip
        assert (receipt.landed, receipt.reasons) == (len(good), {"contract": 10})
        assert bus.pending(TOPIC) == 0


@pytest.mark.parametrize("years", [-20, 20])
def test_a_file_refused_for_a_wrong_clock_is_kept_aside_and_lands_later(
    tmp_path: Path, years: int, caplog: pytest.LogCaptureFixture
) -> None:
    home = Home(tmp_path)
    path = drop(home, "a", [b"{}", *episode(1)])
    receipt = ingest_all(home, clock=FixedClock(NOW.replace(year=NOW.year + years)))
    assert (receipt.landed, receipt.reasons) == (0, {"contract": 1, "issued_at": 20})
    assert "20 of 21 lines were refused for their issued_at" in caplog.text
    assert f"set aside as {TOPIC}/aside/{path.name} in the spool" in caplog.text
    assert f"move it back to {TOPIC}/incoming" in caplog.text
    (path.parents[1] / "aside" / path.name).rename(path)
    assert ingest_all(home).landed == 20
