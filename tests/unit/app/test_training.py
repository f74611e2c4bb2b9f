"""The stages of training call their packages with the settings of the run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.builders.judged_candidates import evidence_of, sealed_policy
from support.builders.plan_books import fitted_tree, make_book
from support.builders.reports import BLUEPRINTS, EPOCH_ZERO, episode, line
from support.fakes.collector import Collector

from simic.app import data, promotion, training
from simic.app.artifacts import artifacts_are_intact, move_damaged_artifacts
from simic.app.comparisons.recipe_training import learn
from simic.app.comparisons.recipes import Recipe
from simic.app.container import Container
from simic.app.evidence import plan_books
from simic.app.names.trial_controllers import select_controllers
from simic.contracts.controllers import HeuristicRules, Plan, TreeLeaf
from simic.contracts.errors import ConfigError, IntegrityError, TrainingError, TransientError
from simic.contracts.names import FIELD_REPORTS
from simic.contracts.results.receipts import TrainingReport
from simic.contracts.rewards import RewardConfig
from simic.contracts.settings.run import WorldConfig
from simic.contracts.splits import Split, split_of
from simic.contracts.state import HostIdentity
from simic.hosts.host_sets import identify
from simic.runtime.home import Home
from simic.runtime.locks import exclusive
from simic.runtime.settings import load_profile
from simic.runtime.telemetry import read_metrics
from simic.trust.canonical import digest_of
from simic.trust.keys import Signer
from simic.validation.baselines.plan_book import searched_world, write_book
from simic.validation.further import further_config

SIGNER = Signer(b"s" * 32)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Collector:
    stand_in = Collector()
    monkeypatch.setattr("simic.collection.collect.collect", stand_in)
    return stand_in


@pytest.fixture
def app(home: Path) -> Container:
    return Container(Home(home), load_profile("quick"), 0)


def _trained(app: Container, weights: bytes) -> TrainingReport:
    app.keyring.trust(SIGNER.public_bytes)
    path, digest = sealed_policy(app.home, weights)
    return evidence_of(app.home, path, digest).training


@pytest.mark.parametrize("start", ["scratch", "distil"])
def test_own_episodes_are_on_training_hosts_of_their_own(home: Path, asked: Collector, start: str) -> None:
    """From scratch they are sampled; for branches they are decisive."""
    app = Container(Home(home), load_profile("quick", {"train.start": start}), 0)
    policy, other = _trained(app, b"one"), _trained(app, b"two")
    training.collect_round(app, 0, None)
    training.collect_round(app, 1, policy)
    training.collect_round(app, 1, policy)
    training.collect_round(app, 2, policy)
    training.collect_round(app, 1, other)
    (first, explored), (own, keys), (_, again), (_, later), (_, others) = asked
    config, is_distil = app.config.collect, start == "distil"
    assert first.name == ("complete" if is_distil else config.controller)
    assert len(explored) == (config.branch_hosts if is_distil else config.episodes)
    assert (own.name, own.policy_path, own.is_decisive) == ("learned", policy.path, is_distil)
    assert keys == again, "the same round of the same run grows the same hosts"
    assert len(keys) == (config.round_branch_hosts if is_distil else config.round_episodes)
    assert not set(keys) & (set(explored) | set(later) | set(others))
    for drawn in (explored, keys, later, others):
        assert {split_of("benchmark", key) for key in drawn} == {Split.TRAIN}


@pytest.mark.parametrize("start", ["scratch", "distil"])
def test_no_round_grows_a_family_that_is_left_out(home: Path, asked: Collector, start: str) -> None:
    app = Container(Home(home), load_profile("quick", {"train.start": start, "world.without": ["noisy"]}), 0)
    training.collect_round(app, 0, None)
    training.collect_round(app, 1, _trained(app, b"one"))
    for _, keys in asked:
        assert {host.family for host in identify("benchmark", keys)} == {"cap", "select", "gain", "fine"}


def test_lf75_only_rounds_branch_decisions_before_the_first_epoch(app: Container, asked: Collector) -> None:
    """Before there is a policy nothing grows after WAIT, so what waiting is worth would not show."""
    training.collect_round(app, 0, None)
    training.collect_round(app, 1, _trained(app, b"one"))
    assert asked.since == [1, 0]


FURTHER = {"set": "varied", "branch_hosts": 20, "round_branch_hosts": 10}


def _further(home: Path, **settings: Any) -> Container:
    return Container(Home(home), load_profile("quick", {"collect.further": [FURTHER], **settings}), 0)


def test_branches_of_a_further_set_are_of_its_own_training_hosts(home: Path, asked: Collector) -> None:
    app = _further(home, **{"world.without": ["noisy", "region_noisy"], "world.images": None})
    assert training.collected_sets(app.config, is_first=True) == ("benchmark", "varied")
    policy = _trained(app, b"one")
    training.collect_round(app, 0, None, set_name="varied")
    training.collect_round(app, 1, policy, set_name="varied")
    training.collect_round(app, 1, policy)
    (first, chosen), (own, keys), (_, ordinary) = asked
    assert (first.name, len(chosen)) == ("complete", 20)
    assert (own.policy_path, own.is_decisive, len(keys)) == (policy.path, True, 10)
    assert len(ordinary) == app.config.collect.round_branch_hosts
    for drawn in (chosen, keys):
        assert {split_of("varied", key) for key in drawn} == {Split.TRAIN}
        families = {host.family for host in identify("varied", drawn)}
        assert "region_noisy" not in families
        assert len(families) == 9
    assert not set(chosen) & set(keys)


def test_a_log_alone_comes_from_the_own_set(home: Path) -> None:
    app = _further(home, **{"train.start": "scratch"})
    assert training.collected_sets(app.config, is_first=True) == ("benchmark",)


def test_a_set_is_collected_once_and_not_without_hosts(home: Path) -> None:
    own = {"set": "benchmark", "branch_hosts": 1, "round_branch_hosts": 1}
    app = _further(home, **{"collect.further": [own, {**FURTHER, "round_branch_hosts": 0}]})
    assert training.collected_sets(app.config, is_first=True) == ("benchmark", "varied")
    assert training.collected_sets(app.config, is_first=False) == ("benchmark",)
    with pytest.raises(ConfigError, match=r"collect\.further.*names varied twice"):
        _further(home, **{"collect.further": [FURTHER, FURTHER]})


@pytest.mark.parametrize(("named", "expected"), [((20, 10), (20, 10)), ((1, 1), (4, 2))])
def test_the_own_set_has_at_least_the_hosts_that_it_has_among_the_further_ones(
    home: Path, asked: Collector, named: tuple[int, int], expected: tuple[int, int]
) -> None:
    first, later = named
    further = {"set": "varied", "branch_hosts": first, "round_branch_hosts": later}
    own = {"world.set": "varied", "collect.branch_hosts": 4, "collect.round_branch_hosts": 2}
    app = _further(home, **own, **{"collect.further": [further]})
    training.collect_round(app, 0, None)
    training.collect_round(app, 1, _trained(app, b"one"))
    assert tuple(len(keys) for _, keys in asked) == expected


def test_an_unknown_set_of_further_collections_is_refused_before_a_run_begins(home: Path) -> None:
    app = _further(home, **{"collect.further": [{**FURTHER, "set": "vared"}]})
    with pytest.raises(ConfigError, match=r"collect\.further: 'vared' is not a set of hosts\. Did you mean 'varied'"):
        plan_books.check_baselines(app)


def test_a_family_that_no_collected_set_has_is_refused_before_a_run_begins(home: Path) -> None:
    plan_books.check_baselines(_further(home, **{"world.without": ["region_noisy"]}))
    with pytest.raises(ConfigError, match="no family region_nosy"):
        plan_books.check_baselines(_further(home, **{"world.without": ["region_nosy"]}))


def test_a_log_is_not_spared_a_family_of_a_set_that_it_does_not_hold(home: Path) -> None:
    app = _further(home, **{"world.without": ["region_noisy"], "train.start": "scratch"})
    with pytest.raises(ConfigError, match="no family region_noisy"):
        plan_books.check_baselines(app)


def test_a_further_set_of_which_no_family_is_left_is_refused_before_a_run_begins(home: Path) -> None:
    own = {"world.without": ["cap"], "collect.further": [{**FURTHER, "set": "cap"}]}
    with pytest.raises(ConfigError, match="set 'cap': no family is left"):
        plan_books.check_baselines(_further(home, **own))


def test_a_family_spelt_wrong_is_refused_before_a_run_begins(home: Path) -> None:
    app = Container(Home(home), load_profile("quick", {"world.without": ["nosy"]}), 0)
    with pytest.raises(ConfigError, match="no family nosy"):
        plan_books.check_baselines(app)


def test_an_unknown_further_set_is_refused_before_a_run_begins(home: Path) -> None:
    app = Container(Home(home), load_profile("quick", {"trial.also_sets": ["benchmark", "vared"]}), 0)
    with pytest.raises(ConfigError, match=r"trial\.also_sets: 'vared' is not a set of hosts\. Did you mean 'varied'"):
        plan_books.check_baselines(app)


def test_pictures_of_the_user_are_for_further_sets_that_read_them() -> None:
    config = load_profile("quick", {"world.set": "images", "world.images": "pictures.npz"})
    assert further_config(config, "varied").world.images is None
    assert further_config(config, "match").world.images == "pictures.npz"


def test_a_later_run_that_begins_the_same_way_grows_other_hosts(
    app: Container, asked: Collector, tmp_path: Path
) -> None:
    policy = _trained(app, b"one")
    for earlier_runs in (0, 1, 2):
        training.collect_round(app, 0, None, earlier_runs)
        training.collect_round(app, 1, policy, earlier_runs)
    drawn = [key for _, keys in asked for key in keys]
    assert len(drawn) == len(set(drawn))
    fresh = Container(Home(tmp_path / "fresh"), app.config, app.seed)
    training.collect_round(fresh, 0, None, 0)
    assert asked[-1] == asked[0], "a fresh home with the same seed grows the same"


def test_named_hosts_may_be_of_any_split(app: Container, asked: Collector) -> None:
    training.collect(app, "wait", range(40))
    assert asked[0][1] == list(range(40))
    assert len({split_of("benchmark", key) for key in asked[0][1]}) == 3


@pytest.mark.parametrize("name", ["herustic", "learned", "schedule"])
def test_a_controller_that_cannot_be_named_is_answered_with_those_that_can(app: Container, name: str) -> None:
    with pytest.raises(ConfigError, match=r"heuristic.*champion|champion.*heuristic"):
        training.collect(app, name, [0])


def test_a_sealed_directory_is_a_controller_until_a_byte_is_flipped(app: Container, asked: Collector) -> None:
    path = Path(_trained(app, b"one").path)
    training.collect(app, str(path), [0])
    assert asked[0][0].policy_path == str(path)
    (path / "weights.safetensors").write_bytes(b"two" * 64)
    with pytest.raises(IntegrityError):
        training.collect(app, str(path), [0])
    with pytest.raises(IntegrityError):
        promotion.verify(app, str(path))


@pytest.fixture
def _outdated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The book of the benchmark was searched on hosts that are no more."""
    monkeypatch.setattr("simic.controllers.plans.PLANS_DIRECTORY", tmp_path)
    write_book(make_book(Plan(), {}, set="benchmark"), tmp_path / "benchmark.json")


@pytest.mark.usefixtures("_outdated")
def test_an_outdated_book_is_refused_before_a_host_is_grown(app: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whatever compares with its plans or rules, and before a run; other controllers do without it."""

    def grow(*_: object, **__: object) -> None:
        raise AssertionError("hosts were grown")

    monkeypatch.setattr("simic.validation.trials.run_trials", grow)
    for name in ("heuristic", "blind", "symptom", "oracle", "expert"):
        with pytest.raises(ConfigError, match="simic plans search --set benchmark"):
            training.try_controllers(app, ["random", name], [0, 1])
    with pytest.raises(ConfigError, match="simic plans search --set benchmark"):
        plan_books.check_baselines(app)
    with pytest.raises(AssertionError, match="hosts were grown"):
        training.try_controllers(app, ["random"], [0, 1])


@pytest.mark.usefixtures("_outdated")
def test_an_outdated_book_of_a_further_set_is_refused_before_a_run_begins(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simic.validation.baselines.plan_book._is_shipped", lambda set_name: set_name != "cap")
    own = {"world.set": "cap"}
    plan_books.check_baselines(Container(Home(home), load_profile("quick", own), 0))
    app = Container(Home(home), load_profile("quick", {**own, "trial.also_sets": ["benchmark"]}), 0)
    with pytest.raises(ConfigError, match="simic plans search --set benchmark"):
        plan_books.check_baselines(app)


@pytest.fixture
def cap_is_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The family stands for one that Simic does not ship."""
    monkeypatch.setattr("simic.validation.baselines.plan_book._is_shipped", lambda set_name: set_name != "cap")


def test_a_run_on_a_shipped_family_needs_a_book(home: Path) -> None:
    with pytest.raises(ConfigError, match="no plan book for set 'cap'; run `simic plans search --set cap`"):
        plan_books.check_baselines(Container(Home(home), load_profile("quick", {"world.set": "cap"}), 0))


@pytest.mark.usefixtures("cap_is_own")
def test_a_run_on_an_own_set_begins_without_a_book_unless_one_is_asked_for(home: Path) -> None:
    plan_books.check_baselines(Container(Home(home), load_profile("quick", {"world.set": "cap"}), 0))
    asked = load_profile("quick", {"world.set": "cap", "gate.require_plan_book": True})
    with pytest.raises(ConfigError, match="no plan book for set 'cap'; run `simic plans search --set cap`"):
        plan_books.check_baselines(Container(Home(home), asked, 0))


@pytest.mark.usefixtures("cap_is_own")
def test_trials_leave_out_who_needs_a_book_only_where_nobody_was_named(home: Path) -> None:
    """Nor is a champion missed where there is none."""
    app = Container(Home(home), load_profile("quick", {"world.set": "cap"}), 0)
    chosen = select_controllers(app, None)
    assert list(chosen.specs) == ["wait", "random", "heuristic"]
    assert chosen.specs["heuristic"].rules == HeuristicRules()
    assert (chosen.book.plans_digest, chosen.book.without_book) == (None, ["heuristic", "blind", "symptom", "oracle"])
    assert select_controllers(app, ["wait", "random"]).book.without_book == []
    with pytest.raises(ConfigError, match="simic plans search --set cap"):
        select_controllers(app, ["wait", "blind"])
    own = make_book(
        Plan(), {"cap": Plan()}, set="cap", world_digest=searched_world(WorldConfig(set="cap"), RewardConfig())
    )
    write_book(own, app.home.plans / "cap.json")
    found = select_controllers(app, None)
    assert list(found.specs) == ["wait", "random", "heuristic", "blind", "oracle"]
    assert (found.book.plans_digest, found.book.without_book) == (digest_of(own), ["symptom"])
    with pytest.raises(ConfigError, match=r"set 'cap' has no tree; run `simic plans search --set cap --only symptom`"):
        select_controllers(app, ["wait", "symptom"])
    own = own.model_copy(update={"symptom": fitted_tree([TreeLeaf(plan=0)], [Plan()])})
    write_book(own, app.home.plans / "cap.json")
    whole = select_controllers(app, None)
    assert list(whole.specs) == ["wait", "random", "heuristic", "blind", "symptom", "oracle"]
    assert (whole.book.plans_digest, whole.book.without_book) == (digest_of(own), [])


def test_receipts_prove_nothing_about_files(app: Container, asked: Collector) -> None:
    trained = _trained(app, b"one")
    place = Path(trained.path).rename(app.home.policies / trained.digest)
    report = app.save_receipt(trained.model_copy(update={"path": str(place)}))
    assert artifacts_are_intact(app, report)
    assert artifacts_are_intact(app, training.collect(app, "wait", [0]))
    weights = Path(report.path) / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert not artifacts_are_intact(app, report)
    weights.unlink()
    assert not artifacts_are_intact(app, report)
    move_damaged_artifacts(app, report)
    assert not Path(report.path).exists()
    assert len(list((app.home.data / "damaged").iterdir())) == 1


def test_an_unknown_objective_is_refused_even_if_branches_are_learned_from(app: Container) -> None:
    policy = _trained(app, b"one")
    snapshot = evidence_of(app.home, Path(policy.path), policy.digest).snapshot
    app.config = app.config.model_copy(update={"train": app.config.train.model_copy(update={"objective": "vtraec"})})
    with pytest.raises(ConfigError, match=r"unknown objective 'vtraec'; known: .*\. Did you mean 'vtrace'"):
        training.train(app, snapshot, None, resume=False)


def test_one_training_at_a_time(app: Container) -> None:
    policy = _trained(app, b"one")
    snapshot = evidence_of(app.home, Path(policy.path), policy.digest).snapshot
    with exclusive(app.home.locks / "train", "training"), pytest.raises(TransientError, match="training is busy"):
        training.train(app, snapshot, None, resume=False)


def test_without_a_registry_there_is_no_champion_and_looking_makes_none(app: Container) -> None:
    assert app.policies.champion_digest() is None
    assert training.resolve_start(app, "champion") is None
    assert not (app.home.mlruns / "mlflow.db").exists()
    with pytest.raises(ConfigError, match="no champion"):
        promotion.publish_champion(app)


def test_a_policy_is_not_recorded_under_settings_it_was_not_trained_with(app: Container) -> None:
    app.keyring.trust(SIGNER.public_bytes)
    path, digest = sealed_policy(app.home, b"one")
    evidence = evidence_of(app.home, path, digest)
    app.save_receipt(evidence.training)
    app.save_receipt(evidence.snapshot)
    with pytest.raises(ConfigError, match=f"{'c' * 12}.*{app.provenance.config_digest[:12]}"):
        promotion.record(app, evidence.validation, evidence.gate)
    assert not (app.home.mlruns / "mlflow.db").exists()
    own = evidence.training.model_copy(update={"config_digest": app.provenance.config_digest})
    app.save_receipt(own)
    assert promotion.record(app, evidence.validation, evidence.gate).digest == digest


def test_an_ingest_leaves_its_counts_where_they_can_be_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simic.hosts.plugins.blueprint_names", lambda: BLUEPRINTS)
    app = Container(Home(home), load_profile("quick"), 0, clock=lambda: EPOCH_ZERO)
    lines = [*map(line, episode(1)), *map(line, episode(1)[:3]), b"not a report"]
    app.open_bus().put(FIELD_REPORTS, "reports", lines)
    receipts = [data.ingest(app), data.ingest(app)]
    records = list(read_metrics(app.home.runs / "ingest" / f"{EPOCH_ZERO:%Y-%m-%d}.jsonl"))
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


@pytest.mark.parametrize("split", [Split.VALIDATION, Split.TEST])
def test_lf61_trials_take_hosts_of_the_split_that_is_asked_for(
    app: Container, monkeypatch: pytest.MonkeyPatch, split: Split
) -> None:
    seen: list[HostIdentity] = []

    def grow(_: object, hosts: Sequence[HostIdentity], *__: object, **___: object) -> None:
        seen.extend(hosts)
        raise AssertionError("hosts were grown")

    monkeypatch.setattr("simic.validation.trials.run_trials", grow)
    with pytest.raises(AssertionError, match="hosts were grown"):
        training.try_controllers(app, ["random"], split=split)
    assert len(seen) == 5 * app.config.trial.hosts_per_family
    assert {split_of("benchmark", host.key) for host in seen} == {split}


def test_lf63_trials_of_another_number_take_other_hosts_and_of_the_same_number_the_same(
    app: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[HostIdentity, ...]] = []

    def grow(_: object, hosts: Sequence[HostIdentity], *__: object, **___: object) -> None:
        seen.append(tuple(hosts))
        raise AssertionError("hosts were grown")

    monkeypatch.setattr("simic.validation.trials.run_trials", grow)
    for draw in (0, 1, 2, 1):
        with pytest.raises(AssertionError, match="hosts were grown"):
            training.try_controllers(app, ["random"], draw=draw)
    assert seen[1] == seen[3]
    assert len({host.key for one in seen[:3] for host in one}) == 3 * len(seen[0]), "no host is in two draws"
    assert {split_of("benchmark", host.key) for one in seen for host in one} == {Split.TEST}
    assert min(host.key for host in seen[0]) < 100, "0 takes the first hosts"


def test_lf51_a_run_with_other_settings_than_its_plan_book_is_warned_before_it_begins(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan_books.check_baselines(Container(Home(home), load_profile("quick", {}), 0))
    assert caplog.messages == []
    plan_books.check_baselines(Container(Home(home), load_profile("quick", {"world.horizon": 10}), 0))
    (message,) = caplog.messages
    assert "world.horizon 10 instead of 20" in message and "simic plans search --set benchmark" in message
    assert message.endswith("; the gate will reject the candidate")


def test_where_no_gate_judges_the_warning_about_other_settings_names_none(
    home: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> TrainingReport:
        raise TrainingError("never commits")

    monkeypatch.setattr("simic.app.runs.Run.learn", fail)
    config = load_profile("quick", {"world.horizon": 10})
    learn(Container(Home(home), config, 0), Recipe("a", "quick", (), config), None, None)
    (message,) = caplog.messages
    assert "world.horizon 10 instead of 20" in message and "gate" not in message


def test_a_round_resumes_by_itself(app: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was killed within a training goes on there; nobody asks for it."""
    asked: list[bool] = []
    monkeypatch.setattr("simic.app.training.train", lambda *_, resume, **_others: asked.append(resume))
    training.train_round(app, None, None, None)  # type: ignore[arg-type]
    assert asked == [True]
