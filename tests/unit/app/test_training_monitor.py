"""What a training tells, and that telling changes nothing of what is learned."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.builders.learning import bandit_episodes
from support.builders.snapshots import write_snapshot
from support.homes.mlflow_databases import furnished_home

from simic.app.container import Container
from simic.app.monitoring import training_monitor
from simic.app.monitoring.training_monitor import TrainingMonitor
from simic.app.training import train
from simic.catalogue.query import query
from simic.contracts.errors import ResourceLimitError
from simic.contracts.metrics import METRICS, Origin, exported_name
from simic.contracts.results.receipts import SnapshotManifest, TrainingReport
from simic.contracts.settings.telemetry import SloConfig, TelemetryConfig
from simic.contracts.telemetry import HealthStatus, SloViolation, TelemetryPacket
from simic.learning.limits import TrainingLimits
from simic.registry.live_curves import TRAININGS
from simic.registry.mlflow_store import open_client
from simic.runtime.home import Home
from simic.runtime.progress import no_advance
from simic.runtime.settings import load_profile
from simic.runtime.telemetry import Update
from simic.runtime.telemetry_records import TelemetryRecords

NOW = datetime(2026, 2, 1, tzinfo=UTC)
POLICY = "ab" * 32
SMALL = {
    "train": {
        "start": "scratch", "network": {"hidden": 8, "layers": 1}, "batch_sequences": 8, "cloning_passes": 1,
        "value_passes": 1, "vtrace_passes": 2, "min_experiences": 10, "min_commit_rate": 0.0,
    }
}  # fmt: skip
FULL = {"level": "full", "packet_updates": 3, "mlflow": True, "slo": {"training_p95_ms": 1e-6}}


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> SnapshotManifest:
    return write_snapshot(tmp_path_factory.mktemp("telemetry") / "s", bandit_episodes(range(24)), split="train")


def container_of(home: Home, telemetry: dict[str, Any]) -> Container:
    return Container(home, load_profile("default", {**SMALL, "telemetry": telemetry}), 0, clock=lambda: NOW)


def packets_of(home: Home) -> list[TelemetryPacket]:
    path = TelemetryRecords(home).packets_path
    return [TelemetryPacket.model_validate_json(line) for line in path.read_bytes().splitlines()]


def trained(home: Home, snapshot: SnapshotManifest, telemetry: dict[str, Any]) -> TrainingReport:
    return train(container_of(home, telemetry), snapshot, None, resume=False)


def test_l7_telemetry_off_or_full_learns_the_same_bits(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, snapshot: SnapshotManifest
) -> None:
    """The digest covers weights, moments and counters; the curves are the same bytes too."""
    silent, told = Home(tmp_path / "off"), furnished_home(tmp_path / "full", tmp_path_factory)
    off, full = trained(silent, snapshot, {"level": "off"}), trained(told, snapshot, FULL)
    assert full.digest == off.digest
    assert (full.metrics, full.config_digest) == (off.metrics, off.config_digest)
    assert Path(full.curves_path).read_bytes() == Path(off.curves_path).read_bytes()
    assert not silent.telemetry.exists()
    assert not silent.metrics.exists()
    _check_what_was_told(told, full)


def _check_what_was_told(home: Home, report: TrainingReport) -> None:
    packets = packets_of(home)
    assert [one.policy for one in packets] == [None] * (report.updates // 3) + [report.digest]
    last = packets[-1]
    assert last.status is HealthStatus.DEGRADED, "no update takes less than a nanosecond"
    assert last.metrics["simic.trainer.updates"] == report.updates
    assert last.metrics["simic.buffer.size"] == report.metrics["step_count"] * 3, "three batches are all of the log"
    told = {exported_name(name) for name, one in METRICS.items() if one.origin is Origin.CLOCK and not one.only_with}
    assert told <= set(last.metrics)
    (missed,) = query(home, "SELECT slo, policy, target FROM slo_violations")
    assert missed == {"slo": "training_p95_ms", "policy": report.digest, "target": 1e-6}
    assert query(home, "SELECT status, policy FROM telemetry ORDER BY policy")[0]["policy"] == report.digest
    families = {one.name: one for one in text_string_to_metric_families((home.metrics / "simic.prom").read_text())}
    loss = families["simic_trainer_policy_loss"].samples[0]
    assert (loss.labels, loss.value) == ({"phase": "vtrace"}, last.metrics["simic.trainer.policy_loss"])
    assert families["simic_trainer_active"].samples[0].value == 0.0
    health = {one.labels["status"]: one.value for one in families["simic_trainer_health"].samples}
    assert health == {status.value: float(status is HealthStatus.DEGRADED) for status in HealthStatus}
    client = open_client(home.tracking_uri)
    (run,) = client.search_runs([client.get_experiment_by_name(TRAININGS).experiment_id])
    assert (run.info.status, run.data.tags["policy"]) == ("FINISHED", report.digest)
    history = client.get_metric_history(run.info.run_id, "vtrace/policy_loss")
    assert history[-1].value == last.metrics["simic.trainer.policy_loss"]


def test_a_training_that_fails_is_critical_and_makes_no_policy(
    tmp_path: Path, snapshot: SnapshotManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, checks = Home(tmp_path), iter(range(5))

    def check(_limits: TrainingLimits) -> None:
        if next(checks, None) is None:
            raise ResourceLimitError("too much memory")

    monkeypatch.setattr(TrainingLimits, "check", check)
    with pytest.raises(ResourceLimitError):
        train(container_of(home, {}), snapshot, None, resume=False)
    (packet,) = packets_of(home)
    assert (packet.status, packet.policy) == (HealthStatus.CRITICAL, None)
    assert packet.metrics["simic.trainer.updates"] == 5.0


class FailingCurves:
    """MLflow that cannot be reached."""

    def write(self, _updates: Any) -> None:
        raise ConnectionError("nobody is there")

    def close(self, _policy: str | None, _stopped: str | None = None) -> None:
        raise ConnectionError("nobody is there")


def monitored(
    home: Home,
    config: TelemetryConfig,
    updates: list[Update],
    live: Any = None,
    recoveries: int = 0,
    stopped: str | None = None,
) -> TelemetryPacket:
    monitor = TrainingMonitor(home, config, lambda: NOW, live)
    for update in updates:
        monitor.update(update)
    monitor.end(POLICY, recoveries, stopped)
    monitor.close()
    return packets_of(home)[-1]


UPDATES = [Update(step, "vtrace", {"policy_loss": 0.5, "step_count": 10.0}, 20.0) for step in (1, 2)]


def test_a_sink_that_fails_is_counted_and_shown_and_fails_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "simic"):
        packet = monitored(Home(tmp_path), TelemetryConfig(), UPDATES, FailingCurves())
    assert packet.status is HealthStatus.DEGRADED
    assert packet.metrics["simic.trainer.sink_failures"] == 2.0
    assert "the training is not affected: mlflow: ConnectionError: nobody is there" in caplog.text


def test_a_sink_that_hangs_is_given_up_and_shown_although_nothing_else_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(training_monitor, "CLOSE_S", 0.05)
    released = threading.Event()

    class HangingCurves(FailingCurves):
        def write(self, _updates: Any) -> None:
            released.wait(60.0)

    config = TelemetryConfig(prometheus=False)
    with caplog.at_level(logging.WARNING, "simic"):
        packet = monitored(Home(tmp_path), config, UPDATES, HangingCurves())
    released.set()
    assert packet.status is HealthStatus.DEGRADED
    assert (packet.metrics["simic.trainer.sink_failures"], packet.metrics["simic.trainer.sink_dropped"]) == (1.0, 0.0)
    assert "mlflow: it did not end within 0.05 s" in caplog.text


def test_records_that_cannot_be_read_are_shown_and_fail_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The entries of this training are judged without those of earlier ones."""

    def broken(_self: TelemetryRecords, _moment: datetime, _name: str) -> float:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(TelemetryRecords, "sum_since", broken)
    updates = [Update(step, "vtrace", {"conservative_mode": float(step % 2)}, 10.0) for step in range(1, 7)]
    with caplog.at_level(logging.WARNING, "simic"):
        packet = monitored(Home(tmp_path), TelemetryConfig(), updates)
    assert packet.status is HealthStatus.DEGRADED, "three entries are more than two a day"
    assert "the training is not affected: records: [Errno 5] Input/output error" in caplog.text


def test_a_full_disk_is_shown_and_fails_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    home = Home(tmp_path)
    home.telemetry.parent.mkdir(parents=True)
    home.telemetry.write_text("a file where the folder should be")
    monitor = TrainingMonitor(home, TelemetryConfig(prometheus=False), lambda: NOW, None)
    with caplog.at_level(logging.WARNING, "simic"):
        monitor.close()
    assert "telemetry is incomplete, the training is not affected: records: " in caplog.text


def test_throughput_and_percentiles_are_those_of_the_updates(tmp_path: Path) -> None:
    metrics = monitored(Home(tmp_path), TelemetryConfig(), UPDATES).metrics
    assert metrics["simic.trainer.steps_per_second"] == pytest.approx(500.0)
    assert metrics["simic.trainer.training_time_p95_ms"] == pytest.approx(20.0)


def test_a_divergence_on_the_way_is_unhealthy(tmp_path: Path) -> None:
    assert monitored(Home(tmp_path), TelemetryConfig(), UPDATES, recoveries=1).status is HealthStatus.UNHEALTHY


def test_low_a_hopeless_training_is_critical_and_counted(tmp_path: Path) -> None:
    finished, stopped = (
        monitored(Home(tmp_path / name), TelemetryConfig(), UPDATES, stopped=cause)
        for name, cause in (("finished", None), ("stopped", "collapsed"))
    )
    assert (finished.status, finished.metrics["simic.trainer.stopped"]) == (HealthStatus.HEALTHY, 0.0)
    assert (stopped.status, stopped.metrics["simic.trainer.stopped"]) == (HealthStatus.CRITICAL, 1.0)


def test_conservative_mode_is_counted_over_a_day_and_breakers_over_the_time(tmp_path: Path) -> None:
    """Two entries in each of two trainings: the second one exceeds two a day. A breaker is open for a third."""
    home, quiet = Home(tmp_path), TelemetryConfig(level="full", packet_updates=1)
    modes = [1.0, 1.0, 0.0, 1.0, 0.0, 0.0]
    updates = [
        Update(step, "vtrace", {"conservative_mode": mode}, 10.0, open_ms=10.0 if step > 4 else 0.0)
        for step, mode in enumerate(modes, start=1)
    ]
    assert monitored(home, quiet, updates).metrics["simic.trainer.conservative_entries"] == 2.0
    monitored(home, quiet, updates)
    lines = TelemetryRecords(home).violations_path.read_bytes().splitlines()
    missed = [SloViolation.model_validate_json(line) for line in lines]
    assert [(one.slo, one.measured) for one in missed] == [
        ("breaker_open_share", pytest.approx(1 / 3)),
        ("conservative_per_day", 4.0),
        ("breaker_open_share", pytest.approx(1 / 3)),
    ]


def test_metrics_of_another_package_are_told_if_their_names_can_be(tmp_path: Path) -> None:
    update = Update(1, "theirs", {"their_loss": 1.0, "Their Loss": 2.0, "broken": float("nan")}, 1.0)
    metrics = monitored(Home(tmp_path), TelemetryConfig(), [update]).metrics
    assert metrics["simic.trainer.their_loss"] == 1.0
    assert not {name for name in metrics if "broken" in name or "Their" in name}


def test_the_progress_bar_says_phase_loss_and_throughput(
    tmp_path: Path, snapshot: SnapshotManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_monitor, "NOTE_EVERY_S", 0.0)
    notes: list[str] = []

    def advance(_count: int, /, note: str | None = None) -> None:
        notes.append(note or "")

    with training_monitor.observer_of(container_of(Home(tmp_path), {"level": "off"}), snapshot, advance) as observer:
        for update in UPDATES:
            observer.update(update)
    assert notes == ["vtrace: policy_loss 0.5, 500 steps/s"] * 2
    with training_monitor.observer_of(container_of(Home(tmp_path), {}), snapshot, no_advance) as observer:
        observer.end(POLICY, 0)


def test_live_curves_need_a_database(
    tmp_path: Path, snapshot: SnapshotManifest, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "simic"):
        trained(Home(tmp_path), snapshot, {"mlflow": True, "slo": SloConfig().model_dump()})
    assert "telemetry.mlflow shows nothing: the home has no MLflow database" in caplog.text
