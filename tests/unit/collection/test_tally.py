"""The sums of a chunk equal what the episodes themselves say."""

from __future__ import annotations

import hashlib
from datetime import timedelta

import pytest
from support.builders.reports import episode

from simic.collection.collect import ChunkTotals
from simic.contracts.field_report import FieldReport
from simic.contracts.rewards import RewardConfig

REWARD = RewardConfig(accuracy_scale=100.0, rent=3.0, rent_parameters=1640, governor_penalty=10.0)


def line_of(report: FieldReport) -> bytes:
    return report.model_dump_json().encode()


def test_return_is_progress_minus_rent_minus_penalty() -> None:
    runs = [episode(0), episode(1, governor_at=6), episode(2, script={})]
    totals = ChunkTotals(3, 20)
    for host, reports in enumerate(runs):
        for report in reports:
            totals.note(host, report, line_of(report))
    summary = totals.summary("f" * 64, REWARD)
    for reports, found in zip(runs, summary.returns, strict=True):
        progress = reports[-1].metrics.validation_accuracy_after - reports[0].metrics.validation_accuracy_before
        rent = sum(report.metrics.rent_parameters for report in reports)
        panics = sum(report.governor is not None for report in reports)
        assert found == pytest.approx(100 * progress - 3 * rent / 1640 / 20 - 10 * panics, abs=1e-9)
    assert summary.governor_events == 1
    assert summary.reports == sum(len(reports) for reports in runs) == sum(summary.actions.values())
    assert summary.actions["FOSSILIZE"] == sum(r.action.op.value == "FOSSILIZE" for reports in runs for r in reports)
    assert summary.policy_version == "f" * 64


def digest_of_host(reports: list[FieldReport]) -> str:
    totals = ChunkTotals(1, 20)
    for report in reports:
        totals.note(0, report, line_of(report))
    (digest,) = totals.summary(None, REWARD).report_digests
    return digest


def test_a_digest_is_that_of_all_lines_without_the_moment() -> None:
    reports = [report.model_copy(update={"controller": 'a-"issued_at":"x",'}) for report in episode(4)]
    lines = "".join(report.model_dump_json(exclude={"issued_at"}) + "\n" for report in reports)
    assert digest_of_host(reports) == hashlib.sha256(lines.encode()).hexdigest()


def test_digests_follow_the_content_and_its_order_and_not_the_moment() -> None:
    reports = episode(4)
    later = [report.model_copy(update={"issued_at": report.issued_at + timedelta(days=1)}) for report in reports]
    assert digest_of_host(reports) == digest_of_host(later)
    loss = reports[7].metrics.validation_loss_after + 1e-6
    metrics = reports[7].metrics.model_copy(update={"validation_loss_after": loss})
    changed = [*reports[:7], reports[7].model_copy(update={"metrics": metrics}), *reports[8:]]
    assert [report.report_id for report in changed] == [report.report_id for report in reports]
    assert len({digest_of_host(one) for one in (reports, changed, reports[::-1], reports[:-1])}) == 4
