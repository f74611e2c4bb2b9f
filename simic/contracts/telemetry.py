"""Health, metrics and requests, sent in addition to field reports."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Literal

from pydantic import Field

from simic.contracts.base import Contract, Digest, Finite, NonNegative, UnitInterval, UtcDatetime

__all__ = ["CircuitState", "CurriculumRequest", "HealthStatus", "SloViolation", "TelemetryPacket"]

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


class CurriculumRequest(Contract):
    """Request for experience of a kind that training lacks."""

    schema_version: Literal[1] = 1
    request_id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    stage: Annotated[int, Field(ge=0, le=3)]
    difficulty: UnitInterval
    families: Annotated[list[Annotated[str, Field(max_length=32)]], Field(max_length=64, default_factory=list)]
    """Empty means any kind."""
    episodes: Annotated[int, Field(ge=1, le=1_000_000)]
    issued_at: UtcDatetime


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
