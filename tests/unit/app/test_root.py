"""What the composition root asks of the rooms."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.books import make_book
from support.judged import NOW, evidence_of, sealed_policy
from support.reports import BLUEPRINTS, episode, line

from simic.app import App
from simic.bus.protocol import FIELD_REPORTS
from simic.contracts.controllers import ControllerSpec, Plan
from simic.contracts.errors import ConfigError, IntegrityError, TransientError
from simic.contracts.receipts import CollectionReceipt, TrainingReport
from simic.contracts.splits import Split, split_of
from simic.contracts.state import HostIdentity
from simic.runtime.locks import exclusive
from simic.runtime.settings import Home, load_profile
from simic.runtime.telemetry import read_metrics
from simic.trust.keys import Signer
from simic.validation.book import write_book

SIGNER = Signer(b"s" * 32)


class _Asked(list[tuple[ControllerSpec, list[int]]]):
    """Stands in for the room that grows hosts."""

    def __call__(
        self, spec: ControllerSpec, hosts: Sequence[HostIdentity], *_: Any, **options: Any
    ) -> CollectionReceipt:
        self.append((spec, [host.key for host in hosts]))
        return CollectionReceipt(
            **options["provenance"]._asdict(), started_at=NOW, finished_at=NOW, controller=spec.name,
            policy_digest=None, set="benchmark", host_keys_digest="0" * 64, episodes=len(hosts), reports=0,
            reports_digest=f"{len(self):064d}", governor_events=0, actions={}, mean_return=None, test_accuracy=None,
        )  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> _Asked:
    stand_in = _Asked()
    monkeypatch.setattr("simic.collection.collect.collect", stand_in)
    return stand_in


@pytest.fixture
def app(home: Path) -> App:
    return App(Home(home), load_profile("quick"), 0)


def _trained(app: App, weights: bytes) -> TrainingReport:
    app.keyring.trust(SIGNER.public_bytes)
    path, digest = sealed_policy(app.home, weights)
    return evidence_of(app.home, path, digest).training


def test_own_episodes_are_sampled_on_training_hosts_of_their_own(app: App, asked: _Asked) -> None:
    policy, other = _trained(app, b"one"), _trained(app, b"two")
    app.collect_round(0, None)
    app.collect_round(1, policy)
    app.collect_round(1, policy)
    app.collect_round(2, policy)
    app.collect_round(1, other)
    (first, explored), (own, keys), (_, again), (_, later), (_, others) = asked
    assert first.name == app.config.collect.controller
    assert len(explored) == app.config.collect.episodes
    assert (own.name, own.policy_path, own.is_decisive) == ("learned", policy.path, False)
    assert keys == again, "the same round of the same run grows the same hosts"
    assert len(keys) == app.config.collect.round_episodes
    assert not set(keys) & (set(explored) | set(later) | set(others))
    for drawn in (explored, keys, later, others):
        assert {split_of("benchmark", key) for key in drawn} == {Split.TRAIN}


def test_a_later_run_that_begins_the_same_way_grows_other_hosts(app: App, asked: _Asked, tmp_path: Path) -> None:
    policy = _trained(app, b"one")
    for earlier_runs in (0, 1, 2):
        app.collect_round(0, None, earlier_runs)
        app.collect_round(1, policy, earlier_runs)
    drawn = [key for _, keys in asked for key in keys]
    assert len(drawn) == len(set(drawn))
    fresh = App(Home(tmp_path / "fresh"), app.config, app.seed)
    fresh.collect_round(0, None, 0)
    assert asked[-1] == asked[0], "a fresh home with the same seed grows the same"


def test_collecting_again_by_hand_grows_other_hosts(app: App, asked: _Asked, tmp_path: Path) -> None:
    for _ in range(3):
        app.collect("wait")
    drawn = [key for _, keys in asked for key in keys]
    assert len(drawn) == len(set(drawn)) == 3 * app.config.collect.episodes
    App(Home(tmp_path / "fresh"), app.config, app.seed).collect("wait")
    assert asked[-1] == asked[0]


def test_named_hosts_may_be_of_any_split(app: App, asked: _Asked) -> None:
    app.collect("wait", range(40))
    assert asked[0][1] == list(range(40))
    assert len({split_of("benchmark", key) for key in asked[0][1]}) == 3


@pytest.mark.parametrize("name", ["herustic", "learned", "schedule"])
def test_a_controller_that_cannot_be_named_is_answered_with_those_that_can(app: App, name: str) -> None:
    with pytest.raises(ConfigError, match=r"heuristic.*champion|champion.*heuristic"):
        app.collect(name, [0])


def test_a_sealed_directory_is_a_controller_until_a_byte_is_flipped(app: App, asked: _Asked) -> None:
    path = Path(_trained(app, b"one").path)
    app.collect(str(path), [0])
    assert asked[0][0].policy_path == str(path)
    (path / "weights.safetensors").write_bytes(b"two" * 64)
    with pytest.raises(IntegrityError):
        app.collect(str(path), [0])
    with pytest.raises(IntegrityError):
        app.verify(str(path))


@pytest.fixture
def _outdated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The book of the benchmark was searched on hosts that are no more."""
    monkeypatch.setattr("simic.controllers.plans.PLANS_DIRECTORY", tmp_path)
    write_book(make_book(Plan(), {}, set="benchmark"), tmp_path / "benchmark.json")


@pytest.mark.usefixtures("_outdated")
def test_an_outdated_book_is_refused_before_a_host_is_grown(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whatever compares with its plans or rules, and before a run; other controllers do without it."""

    def grow(*_: object, **__: object) -> None:
        raise AssertionError("hosts were grown")

    monkeypatch.setattr("simic.validation.trials.run_trials", grow)
    for name in ("heuristic", "blind", "oracle", "expert"):
        with pytest.raises(ConfigError, match="simic plans search --set benchmark"):
            app.trials(["random", name], [0, 1])
    with pytest.raises(ConfigError, match="simic plans search --set benchmark"):
        app.check_baselines()
    with pytest.raises(AssertionError, match="hosts were grown"):
        app.trials(["random"], [0, 1])


def test_receipts_prove_nothing_about_files(app: App, asked: _Asked) -> None:
    report = _trained(app, b"one")
    assert app.is_intact(report)
    assert app.is_intact(app.collect("wait", [0]))
    weights = Path(report.path) / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert not app.is_intact(report)
    weights.unlink()
    assert not app.is_intact(report)
    app.set_aside(report)
    assert not Path(report.path).exists()
    assert len(list((app.home.data / "damaged").iterdir())) == 1


def test_one_training_at_a_time(app: App) -> None:
    policy = _trained(app, b"one")
    snapshot = evidence_of(app.home, Path(policy.path), policy.digest).snapshot
    with exclusive(app.home.locks / "train", "training"), pytest.raises(TransientError, match="training is busy"):
        app.train(snapshot, None)


def test_without_a_registry_there_is_no_champion_and_looking_makes_none(app: App) -> None:
    assert app.champion_digest() is None
    assert app.start_point("champion") is None
    assert not (app.home.mlruns / "mlflow.db").exists()
    with pytest.raises(ConfigError, match="no champion"):
        app.publish_champion()


def test_a_policy_is_not_recorded_under_settings_it_was_not_trained_with(app: App) -> None:
    app.keyring.trust(SIGNER.public_bytes)
    path, digest = sealed_policy(app.home, b"one")
    evidence = evidence_of(app.home, path, digest)
    app.keep(evidence.training)
    app.keep(evidence.snapshot)
    with pytest.raises(ConfigError, match=f"{'c' * 12}.*{app.provenance.config_digest[:12]}"):
        app.record(evidence.validation, evidence.gate)
    assert not (app.home.mlruns / "mlflow.db").exists()
    own = evidence.training.model_copy(update={"config_digest": app.provenance.config_digest})
    app.keep(own)
    assert app.record(evidence.validation, evidence.gate).digest == digest


def test_an_ingest_leaves_its_counts_where_they_can_be_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simic.hosts.catalogue.blueprint_names", lambda: BLUEPRINTS)
    app = App(Home(home), load_profile("quick"), 0, clock=lambda: NOW)
    lines = [*map(line, episode(1)), *map(line, episode(1)[:3]), b"not a report"]
    app.bus.put(FIELD_REPORTS, "reports", lines)
    receipts = [app.ingest(), app.ingest()]
    records = list(read_metrics(app.home.runs / "ingest" / f"{NOW:%Y-%m-%d}.jsonl"))
    ends = [metrics for _, metrics in records if "simic.bus.lag" in metrics]
    for receipt, told in zip(receipts, ends, strict=True):
        assert {name.rpartition(".")[2]: count for name, count in told.items()} == {
            "reports_processed": receipt.read,
            "reports_landed": receipt.landed,
            "reports_duplicate": receipt.duplicate,
            "reports_failed": receipt.quarantined,
            "raw_dropped": receipt.raw_dropped,
            "retried": receipt.retried,
            "reclaimed": 0,
            "dead_lettered": receipt.dead_lettered,
            "lost": receipt.lost,
            "lag": receipt.lag,
        }
    assert (ends[0]["simic.processor.reports_landed"], ends[1]["simic.processor.reports_landed"]) == (20, 0)
