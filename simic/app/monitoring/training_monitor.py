"""Follows a training and tells others: packets, missed service levels, a Prometheus file, MLflow, the progress bar.

What a sink does happens beside the learning and never fails it: failures are counted, shown at the end, and part of the
last packet.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from itertools import islice

from simic.app.container import Container
from simic.app.monitoring.training_statistics import TrainingStatistics
from simic.app.monitoring.training_textfile import TrainingTextfile
from simic.contracts.metrics import METRICS, exported_name
from simic.contracts.results.receipts import SnapshotManifest
from simic.contracts.settings.telemetry import TelemetryConfig
from simic.contracts.telemetry import HealthStatus, SloViolation, TelemetryPacket
from simic.registry.instrument_runs import has_database
from simic.registry.live_curves import LiveCurves
from simic.runtime.clock import Clock
from simic.runtime.home import Home
from simic.runtime.progress import Advance
from simic.runtime.service_levels import DAY_S, MeasuredTraining, health_of, violations
from simic.runtime.side_thread import SideThread
from simic.runtime.telemetry import NullObserver, TrainingObserver, Update
from simic.runtime.telemetry_records import TelemetryRecords

__all__ = ["TrainingMonitor", "observer_of"]

_LOG = logging.getLogger(__name__)

SOURCE = "simic.trainer"
"""Source of the packets of a training."""
TEXTFILE_EVERY_S, CURVES_EVERY_S, NOTE_EVERY_S = 5.0, 2.0, 0.5
CLOSE_S = 30.0
"""Longest time in seconds that the end of a training waits for a sink."""
_EXPORTED = re.compile(r"[a-z][a-z0-9_./-]{0,127}")
_MOST_METRICS = 1024
"""Of one packet."""
_ENTRIES, _STOPPED = "conservative_entries", "stopped"


class TrainingMonitor:
    """Observes one training; ``close`` writes what is left, and judges the service levels."""

    def __init__(self, home: Home, config: TelemetryConfig, clock: Clock, live: LiveCurves | None) -> None:
        """Begin; ``live`` shows the curves in MLflow unless it is None."""
        self._config, self._clock, self._live = config, clock, live
        self._records, self._seen = TelemetryRecords(home), TrainingStatistics()
        self._textfile = TrainingTextfile(home) if config.prometheus else None
        self._began_s, self._recoveries = time.monotonic(), 0
        self._policy: str | None = None
        self._stopped: str | None = None
        self._errors: list[str] = []
        self._threads: dict[str, SideThread[Update]] = {}
        if self._textfile is not None:
            self._threads["prometheus"] = SideThread("prometheus", self._textfile.write, every_s=TEXTFILE_EVERY_S)
        if live is not None:
            self._threads["mlflow"] = SideThread("mlflow", live.write, every_s=CURVES_EVERY_S)

    def begin(self, metrics: Mapping[str, float]) -> None:
        """Take note of the data."""
        self._seen.begin(metrics)

    def update(self, update: Update) -> None:
        """Take note of an update and pass it to the sinks."""
        self._seen.update(update)
        for thread in self._threads.values():
            thread.put(update)
        if self._config.level == "full" and self._seen.updates % self._config.packet_updates == 0:
            self._append(self._packet(HealthStatus.HEALTHY, {}))

    def end(self, policy: str, recoveries: int, stopped: str | None = None) -> None:
        """Take note of the policy; without this call the training has failed."""
        self._policy, self._recoveries, self._stopped = policy, recoveries, stopped

    def close(self) -> None:
        """End the sinks, judge the training, and write the last packet; nothing is raised."""
        last = {} if self._live is None else {"mlflow": partial(self._live.close, self._policy, self._stopped)}
        tallies = {name: thread.close(CLOSE_S, last.get(name)) for name, thread in self._threads.items()}
        self._errors += [f"{name}: {tally.error}" for name, tally in tallies.items() if tally.error is not None]
        missed = violations(self._measured(), self._config.slo, self._clock())
        own = self._seen.conservative_entries
        lost = {
            "sink_failures": float(sum(tally.failures for tally in tallies.values())),
            "sink_dropped": float(sum(tally.dropped for tally in tallies.values())),
        }
        health = health_of(
            is_finished=self._policy is not None and self._stopped is None,
            recoveries=self._recoveries,
            has_violations=bool(missed),
            has_failed_sinks=any(lost.values()),
        )
        ended = {} if self._policy is None else {_STOPPED: float(self._stopped is not None)}
        packet = self._packet(health, {**lost, **ended, **({} if own is None else {_ENTRIES: float(own)})})
        self._append(packet)
        for violation in missed:
            self._append(violation)
        if self._textfile is not None:
            self._finish(self._textfile, packet, missed)
        for violation in missed:
            _LOG.warning(
                "the training missed a service level: telemetry.slo.%s is %g %s, measured %.4g",
                violation.slo,
                violation.target,
                violation.unit,
                violation.measured,
            )
        for error in self._errors:
            _LOG.warning("telemetry is incomplete, the training is not affected: %s", error)

    def _packet(self, status: HealthStatus, further: Mapping[str, float]) -> TelemetryPacket:
        values = {**self._seen.newest, **self._seen.summary(), **further}
        named = ((exported_name(name), value) for name, value in values.items() if math.isfinite(value))
        metrics = dict(islice(((name, value) for name, value in named if _EXPORTED.fullmatch(name)), _MOST_METRICS))
        return TelemetryPacket(
            source=SOURCE, status=status, policy=self._policy, metrics=metrics, emitted_at=self._clock()
        )

    def _measured(self) -> MeasuredTraining:
        seen = self._seen
        return MeasuredTraining(
            source=SOURCE,
            policy=self._policy,
            duration_s=time.monotonic() - self._began_s,
            p95_ms=seen.p95_ms,
            buffer_mb=seen.newest.get("buffer_memory_mb"),
            conservative_entries=self._entries_of_a_day(),
            breaker_open_share=seen.breaker_open_share,
        )

    def _entries_of_a_day(self) -> int | None:
        """Return the entries into conservative mode in 24 hours, over the trainings of the home."""
        own = self._seen.conservative_entries
        if own is None:
            return None
        since = self._clock() - timedelta(seconds=DAY_S)
        try:
            return own + int(self._records.sum_since(since, exported_name(_ENTRIES)))
        except OSError as error:
            self._errors.append(f"records: {error}")
            return own

    def _append(self, record: TelemetryPacket | SloViolation) -> None:
        try:
            self._records.append(record)
        except OSError as error:
            self._errors.append(f"records: {error}")

    def _finish(self, textfile: TrainingTextfile, packet: TelemetryPacket, missed: Sequence[SloViolation]) -> None:
        try:
            textfile.finish(packet, missed)
        except OSError as error:
            self._errors.append(f"prometheus: {error}")


class _ProgressNote:
    """Says beside the progress bar which phase a training is in, its loss, and its throughput."""

    def __init__(self, advance: Advance, inner: TrainingObserver) -> None:
        self._advance, self._inner = advance, inner
        self._said_s, self._steps, self._time_ms = -math.inf, 0.0, 0.0

    def begin(self, metrics: Mapping[str, float]) -> None:
        self._inner.begin(metrics)

    def update(self, update: Update) -> None:
        self._inner.update(update)
        self._steps += update.metrics.get("step_count", 0.0)
        self._time_ms += update.time_ms
        if time.monotonic() - self._said_s < NOTE_EVERY_S:
            return
        shown = [f"{name} {value:.4g}" for name, value in update.metrics.items() if name in _HEADLINES]
        rate = f"{1000.0 * self._steps / max(self._time_ms, 1e-6):,.0f} steps/s"
        self._advance(0, f"{update.phase}: {', '.join([*shown[:1], rate])}")
        self._said_s, self._steps, self._time_ms = time.monotonic(), 0.0, 0.0

    def end(self, policy: str, recoveries: int, stopped: str | None = None) -> None:
        self._inner.end(policy, recoveries, stopped)


_HEADLINES = frozenset(name for name, metric in METRICS.items() if metric.is_headline)


@contextmanager
def observer_of(
    container: Container, snapshot: SnapshotManifest, advance: Advance, seed: int | None = None
) -> Iterator[TrainingObserver]:
    """Yield the observer of a training on ``snapshot``, as ``telemetry`` says; it ends with the block.

    The default of ``seed``, the training seed, is that of the container.
    """
    config = container.config.telemetry
    if config.level == "off":
        yield _ProgressNote(advance, NullObserver())
        return
    monitor = TrainingMonitor(container.home, config, container.clock, _live_curves(container, snapshot, seed))
    try:
        yield _ProgressNote(advance, monitor)
    finally:
        monitor.close()


def _live_curves(container: Container, snapshot: SnapshotManifest, seed: int | None) -> LiveCurves | None:
    if not container.config.telemetry.mlflow:
        return None
    if not has_database(container.home):
        _LOG.warning("telemetry.mlflow shows nothing: the home has no MLflow database; `simic init` creates it")
        return None
    provenance = container.provenance
    tags = {
        "snapshot": snapshot.digest,
        "seed": str(provenance.seed if seed is None else seed),
        "code_version": provenance.code_version,
        "config_digest": provenance.config_digest,
    }
    return LiveCurves(container.home, f"training on {snapshot.digest[:12]}", tags)
