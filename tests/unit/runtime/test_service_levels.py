"""Which service levels a training missed, and how healthy it was."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from simic.contracts.settings.telemetry import SloConfig
from simic.contracts.telemetry import HealthStatus
from simic.runtime.service_levels import MeasuredTraining, health_of, violations

NOW = datetime(2026, 1, 5, tzinfo=UTC)
POLICY = "ab" * 32
AT_THE_BOUND = MeasuredTraining("t", POLICY, 60.0, 500.0, 6144.0, 2, 0.01)


def test_the_defaults_are_the_designs_and_a_value_at_its_bound_is_no_violation() -> None:
    assert violations(AT_THE_BOUND, SloConfig(), NOW) == []


@pytest.mark.parametrize(
    ("change", "slo", "target", "measured", "unit", "window_s"),
    [
        ({"p95_ms": 500.5}, "training_p95_ms", 500.0, 500.5, "ms", 60.0),
        ({"buffer_mb": 6145.0}, "buffer_mb", 6144.0, 6145.0, "MiB", 60.0),
        ({"conservative_entries": 3}, "conservative_per_day", 2.0, 3.0, "entries", 86_400.0),
        ({"breaker_open_share": 0.02}, "breaker_open_share", 0.01, 0.02, "share", 60.0),
    ],
)
def test_each_level_is_missed_by_itself(
    change: dict[str, Any], slo: str, target: float, measured: float, unit: str, window_s: float
) -> None:
    found = AT_THE_BOUND._replace(**change)
    (one,) = violations(found, SloConfig(), NOW)
    assert (one.slo, one.target, one.measured, one.unit, one.window_s) == (slo, target, measured, unit, window_s)
    assert (one.source, one.policy, one.detected_at) == ("t", POLICY, NOW)
    assert violations(found, SloConfig(**{slo: None}), NOW) == []
    assert violations(found._replace(**dict.fromkeys(change)), SloConfig(), NOW) == [], "not measured, not judged"


def test_a_training_without_duration_has_a_window() -> None:
    (one,) = violations(AT_THE_BOUND._replace(duration_s=0.0, p95_ms=501.0), SloConfig(), NOW)
    assert one.window_s > 0.0


@pytest.mark.parametrize(
    ("finished", "recoveries", "missed", "lost", "expected"),
    [
        (True, 0, False, False, HealthStatus.HEALTHY),
        (True, 0, True, False, HealthStatus.DEGRADED),
        (True, 0, False, True, HealthStatus.DEGRADED),
        (True, 1, True, True, HealthStatus.UNHEALTHY),
        (False, 1, True, True, HealthStatus.CRITICAL),
        (False, 0, False, False, HealthStatus.CRITICAL),
    ],
)
def test_the_worst_finding_is_the_health(
    finished: bool, recoveries: int, missed: bool, lost: bool, expected: HealthStatus
) -> None:
    found = health_of(is_finished=finished, recoveries=recoveries, has_violations=missed, has_failed_sinks=lost)
    assert found is expected
