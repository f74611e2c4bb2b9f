"""A timeline from field reports shows what the host itself recorded."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.builders.reports import episode
from support.homes.pipeline import drop, land

from simic.app import data
from simic.app.container import Container
from simic.app.display import timelines
from simic.collection.reporting import Source, field_reports
from simic.contracts.controllers import ControllerSpec, HeuristicRules
from simic.contracts.episode import EpisodeRecord
from simic.contracts.errors import ConfigError, ContractError
from simic.contracts.settings.run import WorldConfig
from simic.contracts.state import HardwareContext
from simic.controllers.factory import make
from simic.hosts.host_sets import identify
from simic.hosts.mixed_ensemble import ensemble_of
from simic.hosts.rollout import rollout
from simic.runtime.home import Home
from simic.runtime.settings import load_profile
from simic.validation.episodes import episode_record, score


def test_reports_tell_the_episode_that_the_host_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts, world = identify("benchmark", [3]), WorldConfig(set="benchmark")
    actor = make(ControllerSpec(name="heuristic", rules=HeuristicRules()), hosts)
    steps = list(rollout(ensemble_of(hosts, world), actor.decide, 0))
    source = Source("heuristic", None, hosts, ["ab" * 16], HardwareContext(device="cpu", threads=1), datetime.now(UTC))
    home = Home(tmp_path / "home")
    home.create()
    drop(home, "reports", [report for step in steps for _, report in field_reports(step, source)])
    container = Container(home, load_profile("default"), 0)
    assert data.ingest(container).landed == len(steps)
    results = score(steps, 1, world, container.config.curate.reward.basic)
    expected = episode_record(steps, 0, hosts[0], "heuristic", results)
    drawn: list[EpisodeRecord] = []
    monkeypatch.setattr("simic.validation.timeline.action_timeline", lambda records, *_: drawn.extend(records))
    found = timelines.draw_reported(container, "ab", tmp_path / "plot.png")
    assert drawn == [found]
    assert {slot.stage for record in found.epochs for slot in record.slots} > {"DORMANT", "TRAINING"}
    assert found.return_points == pytest.approx(expected.return_points)
    assert found.model_copy(update={"return_points": expected.return_points}) == expected
    with pytest.raises(ConfigError, match="no landed episode whose run_id begins with 'cd' has an end"):
        timelines.draw_reported(container, "cd", tmp_path / "plot.png")
    with pytest.raises(ConfigError, match="hexadecimal"):
        timelines.draw_reported(container, "' OR true --", tmp_path / "plot.png")


def test_an_episode_that_is_not_whole_is_refused_with_the_step_at_fault(tmp_path: Path) -> None:
    gap, late, other = episode(1), episode(2), episode(4, horizon=10)
    copies = [late[3].model_copy(update={"report_id": f"{number:032x}"}) for number in range(30)]
    after = [*episode(3, truncate_at=5), *episode(3)[6:8]]
    mixed = [*episode(4)[:9], other[9]]
    home = Home(tmp_path / "home")
    home.create()
    reports = [*gap[:3], *gap[8:], *late, *copies, *after, *mixed]
    assert land(home, reports).landed == len(reports)
    container = Container(home, load_profile("default"), 0)
    for run, fault in {
        gap[0].run_id: "steps 3 to 7 are missing",
        late[0].run_id: "step 3 is repeated",
        after[0].run_id: "step 6 is after the end at step 5",
        mixed[0].run_id: "step 9 differs from the step before in state.horizon",
    }.items():
        with pytest.raises(ContractError, match=f"episode {run}: .* {fault}; `simic check-reports FILE`"):
            timelines.draw_reported(container, run, tmp_path / "plot.png")
    assert not (tmp_path / "plot.png").exists()


def test_a_picture_that_cannot_be_written_is_refused_before_the_work() -> None:
    with pytest.raises(ConfigError, match=r"--plot '/proc/plot.png': expected a place where a file can be written"):
        timelines.check_plot(Path("/proc/plot.png"))


def test_a_picture_goes_into_a_plain_file_or_through_a_link_to_one(tmp_path: Path) -> None:
    """Opening a pipe to see whether it is writable would wait for a reader."""
    picture = tmp_path / "plot.png"
    os.mkfifo(picture)
    with pytest.raises(ConfigError, match=r"--plot expects the name of a \.png file, found"):
        timelines.check_plot(picture)
    picture.unlink()
    for target, found in ((picture, "expects the name"), (Path("/proc/plot.png"), "a place where a file can be")):
        picture.symlink_to(target)
        with pytest.raises(ConfigError, match=found):
            timelines.check_plot(picture)
        picture.unlink()
    picture.symlink_to("other.png")
    timelines.check_plot(picture)
    assert list(tmp_path.iterdir()) == [picture]
    with pytest.raises(ConfigError, match="a place where a file can be written, found: File name too long"):
        timelines.check_plot(tmp_path / f"{'x' * 300}.png")


def test_a_check_leaves_no_file_and_changes_none(tmp_path: Path) -> None:
    timelines.check_plot(tmp_path / "plot.png")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "plot.png").write_bytes(b"picture")
    timelines.check_plot(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes() == b"picture"
