"""Pictures come out, whatever the episodes held."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from support.judged import estimate, family_trial, trials

from simic.contracts.actions import Op
from simic.contracts.config import RewardConfig, WorldConfig
from simic.contracts.controllers import ControllerSpec, Plan, PlannedSeed
from simic.contracts.lifecycle import SeedStage
from simic.hosts.keys import identify
from simic.runtime.telemetry import JsonLinesSink
from simic.validation.episodes import TrialJob, build, score, steps_of
from simic.validation.figures import (
    _running_mean,
    _unbroken,
    action_timeline,
    learning_curves,
    paired_differences,
)
from simic.validation.tracks import Track, tracks_of

WORLD = WorldConfig(horizon=10, workers=1)
PLAN = Plan(seeds=[PlannedSeed(epoch=1, slot=2, blueprint="gate", alpha_speed=3)])


@pytest.fixture(scope="module")
def watched() -> tuple[list[Track], list[float]]:
    """Two hosts under a fixed plan: what was seen, and the accuracy kept at the end."""
    hosts = identify("benchmark", [1, 6])
    job = TrialJob("schedule", ControllerSpec(name="schedule", plan=PLAN), hosts, WORLD, RewardConfig(), 0)
    steps = list(steps_of(build(job.spec, job.hosts), job))
    return tracks_of(steps, hosts), score(steps, 2, WORLD, RewardConfig()).validation_accuracy.tolist()


def size_of(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def test_a_track_tells_the_episode(watched: tuple[list[Track], list[float]]) -> None:
    tracks, kept = watched
    for track, accuracy in zip(tracks, kept, strict=True):
        assert track.slots == 3
        assert len(track.accuracy) == WORLD.horizon + 1
        assert track.accuracy[-1] == pytest.approx(accuracy)
        assert [d.op for d in track.decisions][:2] == [Op.GERMINATE, Op.ADVANCE]
        assert {d.slot for d in track.decisions} == {2}
        assert track.decisions[0].epoch == 1
        lanes = [lane for lane in track.lanes if lane.slot == 2]
        assert [lane.epoch for lane in lanes] == list(range(1, WORLD.horizon))
        assert {lane.blueprint for lane in lanes} == {"gate"}
        assert lanes[0].stage is SeedStage.TRAINING
        assert SeedStage.BLENDING in {lane.stage for lane in lanes}
        assert [lane.alpha for lane in lanes] == sorted(lane.alpha for lane in lanes)
        assert lanes[-1].alpha == 1.0


def test_a_timeline_has_a_band_for_each_episode(watched: tuple[list[Track], list[float]], tmp_path: Path) -> None:
    tracks, _ = watched
    both = size_of(action_timeline(tracks, WORLD.horizon, tmp_path / "both.png", "two"))
    one = size_of(action_timeline(tracks[:1], WORLD.horizon, tmp_path / "one.png", "one"))
    assert both[0] == one[0] > 800
    assert both[1] > 1.4 * one[1]


def test_an_episode_without_any_growth_can_be_drawn(tmp_path: Path) -> None:
    quiet = Track(identify("benchmark", [3])[0], 3, [0.1, 0.5], [], [])
    size_of(action_timeline([quiet], 1, tmp_path / "quiet.png", "nothing happened"))


def test_differences_are_drawn_with_and_without_a_champion(tmp_path: Path) -> None:
    for names in (("wait", "candidate"), ("wait", "random", "blind", "oracle", "champion", "candidate", "stranger")):
        report = trials(names)
        assert size_of(paired_differences(report, tmp_path / f"{len(names)}.png"))[0] > 800


def test_a_family_without_an_interval_is_left_out(tmp_path: Path) -> None:
    report = trials()
    rows = [
        row.model_copy(update={"by_family": {"cap": family_trial(estimate(1.0)), "select": family_trial(None)}})
        for row in report.controllers
    ]
    paired_differences(report.model_copy(update={"controllers": rows}), tmp_path / "some.png")


def test_equal_evidence_gives_equal_bytes(tmp_path: Path) -> None:
    first, second = (paired_differences(trials(), tmp_path / f"{name}.png") for name in "ab")
    assert first.read_bytes() == second.read_bytes()


def test_a_phase_that_logs_nothing_leaves_a_gap_and_means_look_back_only() -> None:
    """[3, 4] and [9]: no line in between; and the mean of 1, 2, .. 30 at its end is that of the last twenty."""
    assert _unbroken([3, 4, 9]) == [slice(0, 2), slice(2, 3)]
    assert _unbroken([]) == [slice(0, 0)]
    means = _running_mean([float(value) for value in range(1, 31)])
    assert means[:2] == [1.0, 1.5]
    assert means[-1] == pytest.approx(sum(range(11, 31)) / 20)


def test_curves_with_holes_are_drawn(tmp_path: Path) -> None:
    curves = tmp_path / "curves.jsonl"
    with JsonLinesSink(curves) as sink:
        for step in range(30):
            sink.log(step, {"policy_loss": float("nan") if step == 7 else 1.0 / (step + 1)})
        sink.log(30, {f"series_{number}": 1.0 for number in range(5)})
    size_of(learning_curves(curves, tmp_path / "curves.png"))
    curves.write_text("")
    size_of(learning_curves(curves, tmp_path / "empty.png"))
