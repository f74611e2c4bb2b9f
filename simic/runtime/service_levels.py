"""Judges the service levels of a training; a level of which nothing was measured is not judged."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from simic.contracts.settings.telemetry import SloConfig
from simic.contracts.telemetry import HealthStatus, SloViolation

__all__ = ["MeasuredTraining", "health_of", "violations"]

DAY_S = 86_400.0
LEAST_WINDOW_S = 1e-3


class MeasuredTraining(NamedTuple):
    """Measurements by which the service levels of one training are judged; None if not measured."""

    source: str
    policy: str | None
    """Digest of the policy; None if the training failed."""
    duration_s: float
    p95_ms: float | None
    """95th percentile of the time of an update."""
    buffer_mb: float | None
    conservative_entries: int | None
    """Entries into conservative mode in the last 24 hours, those of this training included."""
    breaker_open_share: float | None
    """Share of the time of the updates during which a breaker was open."""


class _Level(NamedTuple):
    name: str
    target: float | None
    measured: float | None
    unit: str
    window_s: float


def violations(training: MeasuredTraining, slo: SloConfig, now: datetime) -> list[SloViolation]:
    """Return the missed levels in the order of ``SloConfig``; a value at its bound is no violation."""
    return [
        SloViolation(
            source=training.source,
            policy=training.policy,
            slo=level.name,
            target=level.target,
            measured=level.measured,
            unit=level.unit,
            window_s=level.window_s,
            detected_at=now,
        )
        for level in _levels(training, slo)
        if level.target is not None and level.measured is not None and level.measured > level.target
    ]


def health_of(*, is_finished: bool, recoveries: int, has_violations: bool, has_failed_sinks: bool) -> HealthStatus:
    """Return the health of a training.

    CRITICAL: it failed, or ended early because it was hopeless. UNHEALTHY: it finished after a divergence. DEGRADED: it
    missed a service level, or records were lost on their way to a sink. HEALTHY: none of these.
    """
    if not is_finished:
        return HealthStatus.CRITICAL
    if recoveries:
        return HealthStatus.UNHEALTHY
    return HealthStatus.DEGRADED if has_violations or has_failed_sinks else HealthStatus.HEALTHY


def _levels(training: MeasuredTraining, slo: SloConfig) -> Iterator[_Level]:
    window_s = max(LEAST_WINDOW_S, training.duration_s)
    yield _Level("training_p95_ms", slo.training_p95_ms, training.p95_ms, "ms", window_s)
    yield _Level("buffer_mb", slo.buffer_mb, training.buffer_mb, "MiB", window_s)
    yield _Level("conservative_per_day", slo.conservative_per_day, training.conservative_entries, "entries", DAY_S)
    yield _Level("breaker_open_share", slo.breaker_open_share, training.breaker_open_share, "share", window_s)
