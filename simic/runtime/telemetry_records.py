"""The records of telemetry in a home, JSON lines that ``simic sql`` shows as ``telemetry`` and ``slo_violations``."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from simic.contracts.telemetry import SloViolation, TelemetryPacket
from simic.runtime.home import Home
from simic.runtime.telemetry import append_line

__all__ = ["TelemetryRecords"]


class TelemetryRecords:
    """Appends packets and missed service levels; a line that a killed process left incomplete is no record."""

    def __init__(self, home: Home) -> None:
        self.packets_path, self.violations_path = home.telemetry / "packets.jsonl", home.telemetry / "violations.jsonl"

    def append(self, record: TelemetryPacket | SloViolation) -> None:
        """Append a record; raise OSError if the file cannot be written."""
        path = self.packets_path if isinstance(record, TelemetryPacket) else self.violations_path
        append_line(path, record.model_dump_json())

    def sum_since(self, moment: datetime, name: str) -> float:
        """Return the sum of a metric over the packets emitted at ``moment`` or later; one without it adds nothing."""
        packets = self._packets(self.packets_path)
        return sum(packet.metrics.get(name, 0.0) for packet in packets if packet.emitted_at >= moment)

    @staticmethod
    def _packets(path: Path) -> Iterator[TelemetryPacket]:
        if not path.is_file():
            return
        with path.open("rb") as lines:
            for line in lines:
                try:
                    yield TelemetryPacket.model_validate_json(line)
                except ValidationError:
                    continue
