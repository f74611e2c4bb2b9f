"""A judgement begins before its hosts grow, and the stages of one judgement agree on its number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.builders.judged_candidates import SIGNER, evidence_of, sealed_policy
from support.builders.learning import bandit_episodes
from support.builders.snapshots import write_snapshot

from simic.app import training
from simic.app.container import Container
from simic.app.policies import Policies
from simic.app.runs import open_run_in
from simic.contracts.controllers import Plan
from simic.contracts.errors import ConfigError
from simic.contracts.results.receipts import TrainingReport
from simic.contracts.rewards import RewardConfig
from simic.contracts.splits import Split, split_of
from simic.controllers.plans import load_plans
from simic.ledgers.judgements import judgements
from simic.ledgers.promotions import History
from simic.runtime.home import Home
from simic.runtime.settings import load_profile
from simic.validation.baselines.plan_book import write_book
from simic.validation.report import JudgingRun


class Killed(BaseException):
    """What no stage catches."""


@pytest.fixture
def ordinals(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ordinals for which hosts were to grow; the process is killed as soon as they do."""
    found: list[int] = []

    def grow(*arguments: Any, **_named: Any) -> None:
        found.extend(one.ordinal for one in arguments if isinstance(one, JudgingRun))
        raise Killed

    monkeypatch.setattr("simic.app.training.reports.validate", grow)
    monkeypatch.setattr("simic.app.training._try_further", grow)
    return found


def opened(home: Home, seed: int = 0) -> Container:
    return Container(home, load_profile("quick", {}), seed)


def policy(app: Container, weights: bytes) -> TrainingReport:
    return evidence_of(app.home, *sealed_policy(app.home, weights)).training


def test_a_killed_judgement_goes_on_under_its_number_and_a_reroll_is_another_one(
    tmp_path: Path, ordinals: list[int]
) -> None:
    home = Home(tmp_path)
    first, second = (policy(opened(home), weights) for weights in (b"one", b"two"))
    for app, trained in (
        (opened(home), first), (opened(home), first), (opened(home, seed=1), first),
        (opened(home), second), (opened(home), first),
    ):  # fmt: skip
        for stage in (
            lambda app=app, trained=trained: training.try_further(app, trained, None, "varied"),
            lambda app=app, trained=trained: training.validate(app, trained, None, []),
        ):
            with pytest.raises(Killed):
                stage()
    assert ordinals == [1, 1, 1, 1, 2, 2, 3, 3, 1, 1]
    app = opened(home)
    entries = judgements(home, app.keyring)
    assert [(entry.ordinal, entry.policy_digest, entry.seed) for entry in entries] == [
        (1, first.digest, 0), (2, first.digest, 1), (3, second.digest, 0)
    ]  # fmt: skip


@pytest.fixture
def _changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another policy became champion during the run."""

    def changed(_policies: Policies, digest: str) -> Path:
        raise ConfigError(f"the champion changed from {digest}")

    monkeypatch.setattr(Policies, "fetch_champion", changed)


@pytest.mark.usefixtures("_changed")
def test_a_champion_that_changed_spends_no_judgement(tmp_path: Path) -> None:
    """The comparison would be with the wrong policy, so nothing grows and the error budget stays."""
    home = Home(tmp_path)
    app = opened(home)
    trained = policy(app, b"one")
    for stage in (
        lambda: training.try_further(app, trained, "0" * 64, "varied"),
        lambda: training.validate(app, trained, "0" * 64, []),
    ):
        with pytest.raises(ConfigError, match="the champion changed"):
            stage()
    assert list(judgements(home, app.keyring)) == []


@pytest.mark.usefixtures("_changed")
def test_a_champion_that_changed_spends_no_judgement_from_a_log_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path)
    app = Container(home, load_profile("quick", {"gate.evidence": "reports"}), 0)
    keys = [key for key in range(1000) if split_of("graftnet", key) is Split.TEST][:60]
    logged = write_snapshot(
        tmp_path / "s",
        bandit_episodes(keys),
        split="test",
        change=lambda rows: [{**row, "set": "graftnet"} for row in rows],
        reward=RewardConfig(),
    )
    monkeypatch.setattr("simic.app.evidence.judging.resolve_snapshot", lambda *_: logged)
    monkeypatch.setattr("simic.app.evidence.judging.cut_off_episodes", lambda *_: [])
    app.keyring.trust(SIGNER.public_bytes)
    trained = policy(app, b"one").model_copy(update={"sets": ["graftnet"]})
    with pytest.raises(ConfigError, match="the champion changed"):
        training.validate(app, trained, "0" * 64, [])
    assert list(judgements(home, app.keyring)) == []


def test_another_plan_book_of_a_further_set_makes_another_judgement(tmp_path: Path, ordinals: list[int]) -> None:
    """Its trials show other baselines, so whoever judged with both has seen evidence twice."""
    home = Home(tmp_path)
    app = Container(home, load_profile("quick", {"trial.also_sets": ["varied"]}), 0)
    trained = policy(app, b"one")
    with pytest.raises(Killed):
        training.validate(app, trained, None, [])
    write_book(load_plans("varied").model_copy(update={"blind": Plan()}), home.plans / "varied.json")
    with pytest.raises(Killed):
        training.try_further(app, trained, None, "varied")
    assert ordinals == [1, 2]


def test_a_run_tells_trials_of_another_judgement_from_its_own(tmp_path: Path) -> None:
    """A resumed run would else judge with stored trials that a changed plan book of a further set outdates."""
    home = Home(tmp_path)
    app = Container(home, load_profile("quick", {"trial.also_sets": ["varied"]}), 0)
    with open_run_in(app, "quick") as run:
        before = run.judged_with()
        assert before == run.judged_with()
        write_book(load_plans("varied").model_copy(update={"blind": Plan()}), home.plans / "varied.json")
        assert run.judged_with() != before
        begun = training._begin_judgement(app, policy(app, b"one"), None)
        assert begun.world_digest == run.judged_with()


def test_a_policy_that_was_replaced_is_judged_anew(
    tmp_path: Path, ordinals: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On other hosts: the same evidence would promote it again."""
    home = Home(tmp_path)
    trained = policy(opened(home), b"one")
    for count in (0, 1, 1, 2):
        known = {trained.digest: count}
        monkeypatch.setattr(History, "times_replaced", lambda _history, digest, known=known: known[digest])
        with pytest.raises(Killed):
            training.validate(opened(home), trained, None, [])
    assert ordinals == [1, 2, 2, 3]
