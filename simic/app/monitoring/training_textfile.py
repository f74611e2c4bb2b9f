"""The newest values of a training as a text file for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simic.contracts.metrics import METRICS, exported_name
from simic.contracts.telemetry import HealthStatus, SloViolation, TelemetryPacket
from simic.runtime.home import Home
from simic.runtime.prometheus import Sample, write_textfile
from simic.runtime.telemetry import Update

__all__ = ["TrainingTextfile"]

_FOREIGN = "Metric of an objective of another package."
_MEANINGS = {exported_name(name): metric.meaning for name, metric in METRICS.items()}


class TrainingTextfile:
    """``data/runs/metrics/simic.prom`` of a home: gauges of the training that runs, or of the last one."""

    def __init__(self, home: Home) -> None:
        self._path = home.metrics / "simic.prom"
        self._newest: dict[tuple[str, str], float] = {}
        """By exported name and phase."""

    def write(self, updates: Sequence[Update]) -> None:
        """Rewrite the file with the newest values of each phase."""
        for update in updates:
            values = {**update.metrics, "training_time_ms": update.time_ms}
            self._newest |= {(exported_name(name), update.phase): value for name, value in values.items()}
        write_textfile(self._path, [*self._of_phases(), _active(is_active=True)])

    def finish(self, packet: TelemetryPacket, missed: Sequence[SloViolation]) -> None:
        """Rewrite the file with what the last packet says of the whole training, and with its judgement."""
        by_phase = {name for name, _ in self._newest}
        whole = [_sample(name, value) for name, value in packet.metrics.items() if name not in by_phase]
        write_textfile(self._path, [*self._of_phases(), *whole, *_judgement(packet, missed), _active(is_active=False)])

    def _of_phases(self) -> Iterator[Sample]:
        for (name, phase), value in self._newest.items():
            yield _sample(name, value)._replace(labels={"phase": phase})


def _sample(name: str, value: float) -> Sample:
    return Sample(name, _MEANINGS.get(name, _FOREIGN), value)


def _active(*, is_active: bool) -> Sample:
    return Sample("simic.trainer.active", "1 while a training runs, else 0.", float(is_active))


def _judgement(packet: TelemetryPacket, missed: Sequence[SloViolation]) -> Iterator[Sample]:
    ended = packet.emitted_at.timestamp()
    yield Sample("simic.trainer.end_timestamp_seconds", "End of the last training, in seconds since 1970.", ended)
    for status in HealthStatus:
        labels = {"status": status.value}
        yield Sample("simic.trainer.health", "1 for the health of the last training.", packet.status is status, labels)
    for violation in missed:
        labels = {"slo": violation.slo, "target": f"{violation.target:g}", "unit": violation.unit}
        yield Sample(
            "simic.slo.missed", "Measured value of a service level that was missed.", violation.measured, labels
        )
