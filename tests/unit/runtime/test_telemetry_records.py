"""Records of telemetry: appended, and summed over a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from simic.contracts.telemetry import HealthStatus, TelemetryPacket
from simic.runtime.home import Home
from simic.runtime.telemetry_records import TelemetryRecords

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)


def test_a_sum_is_that_of_the_packets_since_a_moment_and_skips_what_is_no_record(tmp_path: Path) -> None:
    records = TelemetryRecords(Home(tmp_path))
    assert records.sum_since(NOW, "x") == 0.0
    for hours, metrics in ((25, {"x": 100.0}), (24, {"x": 1.0}), (1, {"x": 2.0, "y": 7.0}), (0, {"y": 7.0})):
        moment = NOW - timedelta(hours=hours)
        records.append(TelemetryPacket(source="t", status=HealthStatus.HEALTHY, metrics=metrics, emitted_at=moment))
    with records.packets_path.open("a") as file:
        file.write('{"source": "torn')
    assert records.sum_since(NOW - timedelta(days=1), "x") == 3.0
