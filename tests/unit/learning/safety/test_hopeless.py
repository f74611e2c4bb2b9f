"""A training that will not come to anything ends early: typed, counted, and the same after a kill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.builders.learning import bandit_episodes
from support.builders.snapshots import write_snapshot
from support.builders.trainings import sealed

from simic.contracts.errors import HopelessError
from simic.contracts.results.receipts import SnapshotManifest
from simic.contracts.settings.network import NetworkConfig
from simic.contracts.settings.safety import AnomalyKind, HopelessConfig, SafetyConfig, StopCause
from simic.contracts.settings.training import TrainConfig
from simic.learning.safety.guard import Guard
from simic.learning.safety.loss_trend import LossTrend, is_stale, step
from simic.runtime.telemetry import NullObserver, Update
from simic.trust.keys import Keyring
from simic.trust.seal import verify as verify_seal

NEVER_ENOUGH = HopelessConfig(stale_passes=2, min_improvement=1.0)
"""No loss falls by all of itself."""


class Killed(Exception):
    """A training that is killed between two updates."""


class KillAfter(NullObserver):
    def __init__(self, updates: int) -> None:
        self.updates = updates
        self.stopped: list[str | None] = []

    def update(self, update: Update) -> None:
        if update.step == self.updates:
            raise Killed

    def end(self, policy: str, recoveries: int, stopped: str | None = None) -> None:
        self.stopped.append(stopped)


def settings(hopeless: HopelessConfig | None, **further: Any) -> TrainConfig:
    safety = SafetyConfig() if hopeless is None else SafetyConfig(hopeless=hopeless)
    given = {"vtrace_passes": 6, "cloning_passes": 2, "value_passes": 2, **further}
    return TrainConfig(
        network=NetworkConfig(hidden=8, layers=1), batch_sequences=16, round_passes=2, min_experiences=100,
        min_commit_rate=0.0, checkpoint_updates=3, safety=safety, **given,
    )  # fmt: skip


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> SnapshotManifest:
    return write_snapshot(tmp_path_factory.mktemp("log") / "one", bandit_episodes(range(120)), split="train")


def test_low_a_loss_that_never_falls_ends_the_training_in_its_phase(tmp_path: Path, snapshot: SnapshotManifest) -> None:
    observer = KillAfter(-1)
    report = sealed(tmp_path, snapshot, settings(NEVER_ENOUGH), observer=observer)
    stop = report.stopped
    assert stop is not None
    assert (stop.cause, stop.phase) == (StopCause.NO_PROGRESS, "vtrace"), "two passes of a phase are too few to judge"
    assert 0 < stop.updates < stop.planned_updates
    assert "train.safety.hopeless.stale_passes is 2" in stop.detail
    lines = Path(report.curves_path).read_text().splitlines()
    assert len([json.loads(line) for line in lines]) == stop.updates == report.updates
    assert observer.stopped == ["no_progress"]
    verify_seal(Path(report.path), Keyring(tmp_path / "keys"))
    whole = sealed(tmp_path / "whole", snapshot, settings(None))
    assert whole.stopped is None
    assert whole.updates == stop.planned_updates


def test_low_a_killed_training_comes_to_the_same_end(tmp_path: Path, snapshot: SnapshotManifest) -> None:
    config = settings(NEVER_ENOUGH)
    whole = sealed(tmp_path / "whole", snapshot, config)
    assert whole.stopped is not None
    for kill_at in (whole.stopped.updates - 2, whole.stopped.updates):
        root = tmp_path / str(kill_at)
        with pytest.raises(Killed):
            sealed(root, snapshot, config, observer=KillAfter(kill_at))
        resumed = sealed(root, snapshot, config, resume=True)
        assert (resumed.digest, resumed.stopped) == (whole.digest, whole.stopped)


def test_low_the_criterion_changes_nothing_of_a_training_that_it_lets_finish(
    tmp_path: Path, snapshot: SnapshotManifest
) -> None:
    lenient = HopelessConfig(stale_passes=500, collapsed_updates=5000)
    one, other = (sealed(tmp_path / str(at), snapshot, settings(given)) for at, given in enumerate((None, lenient)))
    assert one.digest == other.digest
    assert other.stopped is None


def trend_of(*means: float) -> LossTrend:
    trend = LossTrend()
    for number, mean in enumerate([*means, 0.0]):  # a pass is finished when the next one begins
        trend = step(trend, "vtrace", 0, number, mean)
    return trend


@pytest.mark.parametrize(
    ("means", "expected"),
    [
        ((1.0, 1.0, 1.2, 0.995), True),
        ((1.0, 1.0, 0.98, 1.3), False),
        ((1.0, 1.0, 1.0), False),
        ((1.0, 0.5, 1.5, 1.5, 1.5), False),
        ((0.0, 0.0, 0.0, 0.0), False),
    ],
    ids=["within a hundredth", "one pass was better", "too few passes", "it rose again", "nothing is left to learn"],
)
def test_the_loss_is_compared_with_that_of_the_first_pass(means: tuple[float, ...], expected: bool) -> None:
    assert is_stale(trend_of(*means), 3, 0.01) is expected


def collapsed(rate: float, phase: str = "ppo", **further: float) -> dict[str, float]:
    return {
        "commit_rate": rate, "fossilize_legal": 1.0, "entropy_op": 0.5, "grad_norm_policy": 0.1, "grad_norm_value": 0.1,
        "explained_variance": 0.5, "max_log_ratio": 0.0, "mean_ratio": 1.0, "mean_log_ratio": 0.0, **further,
        **{f"entropy_{head}": 0.5 for head in ("slot", "blueprint", "alpha_target", "alpha_speed", "alpha_curve",
                                               "tempo") if f"entropy_{head}" not in further},
    }  # fmt: skip


def guard_of(updates: int | None) -> Guard:
    safety = SafetyConfig(
        hopeless=HopelessConfig(collapsed_updates=updates),
        anomalies={"grace_updates": 0, "escalate_after": 2},  # type: ignore[arg-type]
    )
    return Guard(TrainConfig(safety=safety, clip_norm=1.0, batch_sequences=16))


def test_low_a_policy_that_stays_collapsed_is_hopeless() -> None:
    """One update of a policy that grows something begins the count again, and so does another phase."""
    guard = guard_of(3)
    for rates in ([0.0] * 3, [0.2], [0.0] * 3):
        for rate in rates:
            guard.observe("ppo", 0, collapsed(rate), None, has_pressure=False)
            guard.require_hope()
    guard.observe("vtrace", 0, collapsed(0.0), None, has_pressure=False)
    guard.require_hope()
    for _ in range(3):
        guard.observe("vtrace", 0, collapsed(0.0), None, has_pressure=False)
    with pytest.raises(HopelessError, match=r"phase vtrace: .* 3 updates in a row.*collapsed_updates is 3"):
        guard.require_hope()
    assert guard.stop is not None
    assert guard.stop.cause is StopCause.COLLAPSED
    assert guard.anomalies[AnomalyKind.COMMIT_COLLAPSE] == 10


def test_low_one_operation_alone_is_a_collapse_and_one_blueprint_alone_is_none() -> None:
    for head, is_hopeless in (("op", True), ("blueprint", False)):
        guard = guard_of(2)
        guard.observe("ppo", 0, collapsed(0.5), None, has_pressure=False)
        for _ in range(4):
            guard.observe("ppo", 0, collapsed(0.5, **{f"entropy_{head}": 1e-3}), None, has_pressure=False)
        assert guard.anomalies[AnomalyKind.ENTROPY_COLLAPSE] == 4
        if is_hopeless:
            with pytest.raises(HopelessError):
                guard.require_hope()
        else:
            guard.require_hope()


def test_without_the_setting_nothing_is_hopeless() -> None:
    guard = guard_of(None)
    for _ in range(50):
        guard.observe("ppo", 0, collapsed(0.0), None, has_pressure=False)
        guard.require_hope()
