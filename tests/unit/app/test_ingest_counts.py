"""The counts of an ingestion, for Prometheus."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.builders.reports import BLUEPRINTS, episode
from support.homes.pipeline import FixedClock, drop

from simic.app import data
from simic.app.container import Container
from simic.runtime.home import Home
from simic.runtime.settings import load_profile


def container_of(home: Home, **telemetry: Any) -> Container:
    return Container(
        home,
        load_profile("default", {"telemetry": telemetry, "ingest": {"declared_blueprints": list(BLUEPRINTS)}}),
        0,
        clock=FixedClock(),
    )


def test_the_last_counts_are_told_unless_nobody_wants_them(tmp_path: Path) -> None:
    home = Home(tmp_path)
    container = container_of(home)
    drop(home, "some", [*episode(0), b"{"])
    receipt = data.ingest(container)
    assert (receipt.quarantined, receipt.landed > 0) == (1, True)
    families = text_string_to_metric_families((home.metrics / "ingest.prom").read_text())
    found = {one.name: one.samples[0].value for one in families}
    assert found == {
        "simic_processor_reports_processed": receipt.read,
        "simic_processor_reports_failed": 1.0,
        "simic_processor_end_timestamp_seconds": receipt.finished_at.timestamp(),
    }
    (home.metrics / "ingest.prom").unlink()
    for silent in ({"level": "off"}, {"prometheus": False}):
        data.ingest(container_of(home, **silent))
    assert list(home.metrics.iterdir()) == []


def test_a_file_that_cannot_be_written_fails_no_ingestion(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    home = Home(tmp_path)
    container = container_of(home)
    home.metrics.write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING, "simic"):
        data.ingest(container)
    assert "the ingestion is not affected" in caplog.text
