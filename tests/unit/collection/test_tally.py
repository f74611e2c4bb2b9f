"""The sums of a chunk equal what the episodes themselves say."""

from __future__ import annotations

import hashlib

import pytest
from support.reports import episode

from simic.collection.tally import Tally
from simic.contracts.config import RewardConfig

REWARD = RewardConfig(accuracy_scale=100.0, rent=3.0, rent_parameters=1640, governor_penalty=10.0)


def test_return_is_progress_minus_rent_minus_penalty() -> None:
    runs = [episode(0), episode(1, governor_at=6), episode(2, script={})]
    tally = Tally(3, 20)
    for host, reports in enumerate(runs):
        for report in reports:
            tally.note(host, report)
    summary = tally.summary("f" * 64, REWARD)
    for reports, found in zip(runs, summary.returns, strict=True):
        progress = reports[-1].metrics.validation_accuracy_after - reports[0].metrics.validation_accuracy_before
        rent = sum(report.metrics.rent_parameters for report in reports)
        panics = sum(report.governor is not None for report in reports)
        assert found == pytest.approx(100 * progress - 3 * rent / 1640 / 20 - 10 * panics, abs=1e-9)
    assert summary.governor_events == 1
    assert summary.reports == sum(len(reports) for reports in runs) == sum(summary.actions.values())
    assert summary.actions["FOSSILIZE"] == sum(r.action.op.value == "FOSSILIZE" for reports in runs for r in reports)
    assert summary.policy_version == "f" * 64


def test_digests_name_the_reports_of_each_host_in_step_order() -> None:
    reports = episode(4)
    tally = Tally(1, 20)
    for report in reports:
        tally.note(0, report)
    expected = hashlib.sha256("".join(report.report_id for report in reports).encode()).hexdigest()
    assert tally.summary(None, REWARD).report_digests == [expected]
