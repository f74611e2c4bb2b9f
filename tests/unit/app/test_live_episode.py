"""What is watched is what trials measure, and what is drawn is what was collected."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.builders.observations import make_scene
from support.homes.pipeline import NOW

from simic.app import training
from simic.app.container import Container
from simic.app.display.live_episode import DEFAULT_CONTROLLER, LiveEpisode
from simic.bus.spool.bus import SpoolBus
from simic.contracts.episode import EpisodeRecord
from simic.contracts.errors import ConfigError, IllegalActionError
from simic.contracts.field_report import FieldReport
from simic.contracts.names import FIELD_REPORTS
from simic.contracts.settings.network import NetworkConfig
from simic.contracts.splits import Split, split_of
from simic.controllers.feature_ranges import ranges_of
from simic.controllers.features import encode
from simic.controllers.graph import NodeFeatures
from simic.controllers.learned_controller import LearnedController
from simic.controllers.network import NetworkShape, PolicyNetwork, fit_normaliser
from simic.controllers.policy_files import describe, load_policy, save_policy
from simic.hosts.ensemble import Ensemble
from simic.hosts.plugins import blueprint_names
from simic.hosts.rollout import rollout
from simic.runtime.home import Home
from simic.runtime.settings import load_profile
from simic.trust.seal import seal
from simic.validation import timeline
from simic.validation.trials import trial_seed

KEYS = list(range(7))


def app_in(home: Path, **more: object) -> Container:
    return Container(Home(home), load_profile("quick", {"world.workers": 1, "world.horizon": 8, **more}), 0)


@pytest.fixture
def app(home: Path) -> Container:
    return app_in(home)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[EpisodeRecord]:
    """What went into the picture."""
    episodes: list[EpisodeRecord] = []
    draw = timeline.action_timeline

    def note(records: list[EpisodeRecord], path: Path, title: str) -> Path:
        episodes.extend(records)
        return draw(records, path, title)

    monkeypatch.setattr("simic.app.display.live_episode.action_timeline", note)
    return episodes


def reports_of(app: Container) -> list[FieldReport]:
    """Everything on the bus, in order, as if issued at one moment."""
    deliveries = SpoolBus(app.home.spool).claim(FIELD_REPORTS)
    lines = [line.data for delivery in deliveries for line in delivery.open(1 << 20)]
    return [FieldReport.model_validate_json(line).model_copy(update={"issued_at": NOW}) for line in lines]


@pytest.mark.parametrize("name", ["random", "heuristic"])
def test_a_watched_host_ends_as_it_does_in_trials(app: Container, name: str) -> None:
    watch = LiveEpisode(app, name, 15)
    seen = list(watch.epochs())
    report = watch.report()
    trial = {row.controller: row for row in training.try_controllers(app, [name], [15, 21]).controllers}
    assert report.episode.return_points == trial[name].returns[0]
    assert report.episode.test_accuracy == trial[name].test_accuracies[0]
    assert report.wait.return_points == trial["wait"].returns[0]
    assert report.over_wait == trial[name].returns[0] - trial["wait"].returns[0]
    assert report.episode.epochs == seen
    assert [record.epoch for record in seen] == list(range(8))
    assert list(watch.epochs()) == seen, "looking again shows the same"
    assert watch.report().episode == report.episode


def test_unnamed_it_is_the_first_test_host_under_the_heuristic_where_there_is_no_champion(app: Container) -> None:
    watch = LiveEpisode(app)
    assert watch.controller == DEFAULT_CONTROLLER == "heuristic"
    assert watch.split is Split.TEST
    assert split_of("benchmark", watch.host.key) is Split.TEST
    assert not any(split_of("benchmark", key) is Split.TEST for key in range(0, watch.host.key, 5))
    assert not (app.home.mlruns / "mlflow.db").exists()


def _sealed_policy(app: Container, learned_from: NodeFeatures | None = None) -> tuple[Path, str]:
    """An untrained network, sealed with the key of the app's home; its card has the ranges of ``learned_from``."""
    blueprints, shape = blueprint_names(), NetworkConfig(hidden=8, layers=1)
    network = PolicyNetwork(NetworkShape.of(shape, blueprints), seed=1)
    network.set_normaliser(fit_normaliser(encode(make_scene(0, 60).observations), blueprints))
    ranges = None if learned_from is None else ranges_of(learned_from, blueprints)
    card = describe(
        network, shape, set_name="benchmark", snapshot_digest=None, code_version="x", config_digest="d" * 64,
        feature_ranges=ranges,
    )  # fmt: skip
    save_policy(app.home.policies / "mine", network, card)
    return app.home.policies / "mine", seal(app.home.policies / "mine", app.signer).digest


def test_a_sealed_policy_is_called_by_its_digest_and_not_by_where_it_lies(app: Container) -> None:
    path, digest = _sealed_policy(app)
    watch = LiveEpisode(app, str(path), 15)
    assert watch.controller == f"policy {digest[:8]}"
    assert len(list(watch.epochs())) == 8
    assert watch.report().policy_digest == digest


def test_the_report_says_what_of_the_host_was_unlike_the_training(app: Container, tmp_path: Path) -> None:
    """A policy's figures on a host unlike its training promise nothing; each measurement is named once, as it began."""
    path, _ = _sealed_policy(app, encode(make_scene(0, 60).observations))
    watch = LiveEpisode(app, str(path), 15)
    assert all(record.epoch < 8 for record in watch.epochs())
    controller = LearnedController(load_policy(path), policy_version=None, is_decisive=True)
    steps = list(rollout(Ensemble([watch.host], app.config.world), controller.decide, trial_seed(app.provenance)))
    by_epoch = [controller.out_of_range(step.observations) or [] for step in steps]
    first = {(one.node, one.feature): one for found in reversed(by_epoch) for one in reversed(found)}
    assert len(first) < sum(map(len, by_epoch))
    found = watch.report().out_of_range or []
    assert sorted(map(str, found)) == sorted(map(str, first.values()))
    other = app_in(tmp_path / "other")
    for silent in (LiveEpisode(app, "heuristic", 15), LiveEpisode(other, str(_sealed_policy(other)[0]), 15)):
        list(silent.epochs())
        assert silent.report().out_of_range is None


def test_the_report_waits_for_the_end(app: Container) -> None:
    watch = LiveEpisode(app, "wait", 3)
    with pytest.raises(RuntimeError, match="has not ended"):
        watch.report()
    next(watch.epochs())
    with pytest.raises(RuntimeError, match="has not ended"):
        watch.report()


def test_an_unknown_controller_and_a_key_beyond_all_are_config_errors(app: Container) -> None:
    with pytest.raises(ConfigError, match="heuristic"):
        LiveEpisode(app, "herustic", 3)
    with pytest.raises(ConfigError, match="host keys"):
        LiveEpisode(app, "wait", 2**31)


def test_an_illegal_action_is_never_shown_as_a_wait(app: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = LiveEpisode(app, "random", 15)
    decide = watch._actor.decide

    def prune(*asked: object) -> object:
        decisions = decide(*asked)  # type: ignore[arg-type]
        decisions.actions[0] = [5, 0, -1, -1, -1, -1, -1]
        return decisions

    monkeypatch.setattr(watch._actor, "decide", prune)
    with pytest.raises(IllegalActionError, match="host 15"):
        list(watch.epochs())


def test_a_picture_changes_nothing_about_a_collection(tmp_path: Path) -> None:
    plain, drawing = app_in(tmp_path / "plain"), app_in(tmp_path / "drawing")
    without = training.collect(plain, "explore", KEYS)
    with_plot = training.collect(drawing, "explore", KEYS, tmp_path / "deep.png")
    assert (tmp_path / "deep.png").read_bytes().startswith(b"\x89PNG")
    apart = {"started_at", "finished_at"}
    assert with_plot.model_dump(exclude=apart) == without.model_dump(exclude=apart)
    assert reports_of(drawing) == reports_of(plain)
    again = [training.collect(app, "explore").host_keys_digest for app in (plain, drawing)]
    assert again[0] == again[1], "nor about the hosts of the next one"


def test_what_is_drawn_is_what_was_reported(app: Container, drawn: list[EpisodeRecord], tmp_path: Path) -> None:
    """One host of each family, the first of the collection, each decision and accuracy as it lies on the bus."""
    keys = [9, 4, 2, 7, 12, 1, 6, 3, 5]
    training.collect(app, "explore", keys, tmp_path / "a.png")
    assert [record.host.key for record in drawn] == [9, 2, 1, 3, 5]
    landed = reports_of(app)
    for record in drawn:
        reports = [report for report in landed if report.host.key == record.host.key]
        assert [report.action for report in reports] == [epoch.action for epoch in record.epochs]
        assert [report.metrics.validation_accuracy_after for report in reports[:-1]] == pytest.approx(
            [epoch.validation_accuracy for epoch in record.epochs[:-1]], abs=0
        )
        assert reports[-1].metrics.test_accuracy == record.test_accuracy


@pytest.mark.parametrize("name", ["picture.jpg", "picture", "file/under.png"])
def test_a_place_where_no_picture_can_lie_is_told_before_anything_is_grown(
    app: Container, tmp_path: Path, name: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--plot|create it first"):
        training.collect(app, "wait", KEYS, tmp_path / name)
    assert list(app.home.spool.rglob("*.jsonl*")) == []
