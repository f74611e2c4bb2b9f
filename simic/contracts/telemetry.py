"""Health, metrics and requests, sent in addition to field reports."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Literal

from pydantic import Field

from simic.contracts.base import Contract, Digest, Finite, NonNegative, UtcDatetime

__all__ = ["CircuitState", "HealthStatus", "SloViolation", "TelemetryPacket"]

MetricName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_./-]{0,127}$")]


class HealthStatus(str, Enum):
    """Health of a component."""

    HEALTHY = "HEALTHY"
    DEGRADED = "DEGRADED"
    UNHEALTHY = "UNHEALTHY"
    CRITICAL = "CRITICAL"


class CircuitState(str, Enum):
    """State of a circuit breaker."""

    CLOSED = "CLOSED"
    OPEN = "OPEN"
    HALF_OPEN = "HALF_OPEN"


class TelemetryPacket(Contract):
    """Metrics of one component at one moment."""

    schema_version: Literal[1] = 1
    source: Annotated[str, Field(min_length=1, max_length=128)]
    status: HealthStatus
    policy: Digest | None = None
    """Policy that a training made; null while it runs, and if it failed."""
    metrics: Annotated[dict[MetricName, Finite], Field(max_length=1024)]
    emitted_at: UtcDatetime


class SloViolation(Contract):
    """A missed service level."""

    schema_version: Literal[1] = 1
    source: Annotated[str, Field(min_length=1, max_length=128)]
    policy: Digest | None = None
    """Policy that a training made; null if it failed."""
    slo: Annotated[str, Field(min_length=1, max_length=64)]
    target: NonNegative
    measured: NonNegative
    unit: Annotated[str, Field(max_length=16)]
    window_s: Annotated[float, Field(gt=0, le=31_536_000)]
    detected_at: UtcDatetime
