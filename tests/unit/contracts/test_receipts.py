"""Receipts refuse numbers that contradict each other, and health says whether anything is left to be done."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from simic.contracts.results.lake import Check, Health, HealthReport
from simic.contracts.results.trials import Estimate


@pytest.mark.parametrize(("lower", "upper"), [(1.1, 2.0), (0.0, 0.9), (2.0, 0.0)])
def test_an_estimate_lies_within_its_bounds(lower: float, upper: float) -> None:
    assert Estimate(mean=1.0, lower=1.0, upper=1.0, confidence=0.95, n=2).mean == 1.0
    with pytest.raises(ValidationError, match="expected lower <= mean <= upper"):
        Estimate(mean=1.0, lower=lower, upper=upper, confidence=0.95, n=2)


@pytest.mark.parametrize("found", list(Health))
def test_a_home_is_healthy_once_every_check_is_healthy_or_repaired(found: Health) -> None:
    checks = [Check(name=health.value, health=health, found="found", remedy="") for health in (Health.HEALTHY, found)]
    report = HealthReport(checked_at=datetime(2026, 1, 6, tzinfo=UTC), is_deep=False, is_repair=False, checks=checks)
    assert report.is_healthy is (found in {Health.HEALTHY, Health.REPAIRED})
