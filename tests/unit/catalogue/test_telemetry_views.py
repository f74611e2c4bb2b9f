"""Packets and missed service levels as rows."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from simic.catalogue.query import query
from simic.contracts.telemetry import HealthStatus, SloViolation, TelemetryPacket
from simic.runtime.home import Home
from simic.runtime.telemetry_records import TelemetryRecords

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
POLICY = "ab" * 32


def test_every_whole_record_is_a_row_with_its_values(tmp_path: Path) -> None:
    home = Home(tmp_path)
    records = TelemetryRecords(home)
    metrics = {"simic.trainer.grad_norm": 0.5}
    packet = TelemetryPacket(source="t", status=HealthStatus.DEGRADED, policy=POLICY, metrics=metrics, emitted_at=NOW)
    violation = SloViolation(
        source="t", policy=None, slo="buffer_mb", target=1.0, measured=2.0, unit="MiB", window_s=3.0, detected_at=NOW
    )
    for record in (packet, violation):
        records.append(record)
    for path in (records.packets_path, records.violations_path):
        with path.open("a") as file:
            file.write('{"source": "torn')
    (row,) = query(home, "FROM telemetry")
    assert row == {
        "emitted_at": NOW.isoformat(),
        "source": "t",
        "status": "DEGRADED",
        "policy": POLICY,
        "metrics": metrics,
    }
    (missed,) = query(home, "FROM slo_violations")
    assert missed == {**{name: getattr(violation, name) for name in missed}, "detected_at": NOW.isoformat()}
    assert set(missed) == set(SloViolation.model_fields) - {"schema_version"}
