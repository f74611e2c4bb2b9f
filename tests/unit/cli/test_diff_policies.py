"""The verb that shows where two policies act differently."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.builders.deciding_policies import sealed_decider
from support.builders.learning import bandit_branches, bandit_episodes
from support.builders.snapshots import write_snapshot

from simic.app.container import Container
from simic.cli.diff_policies import diff_policies
from simic.contracts.errors import ConfigError, IntegrityError, TransientError
from simic.contracts.results.policy_difference import PolicyDifference
from simic.contracts.settings.run import RunConfig
from simic.contracts.splits import Split
from simic.hosts.host_sets import draw_keys, identify
from simic.runtime.home import Home
from simic.trust.seal import MANIFEST_NAME, seal

Rows = list[dict[str, Any]]


def with_terms(rows: Rows) -> Rows:
    return [{**row, "reward_progress": row["reward"], "reward_rent": 0.0, "reward_penalty": 0.0} for row in rows]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "snapshot"
    write_snapshot(path, [*bandit_episodes(range(40)), *bandit_branches(range(3))], change=with_terms)
    return path


@pytest.fixture
def policy(home: Path) -> Path:
    Home(home).create()
    path = home / "given" / "policy"
    path.parent.mkdir()
    sealed_decider(path)
    (path / MANIFEST_NAME).unlink()
    seal(path, Container(Home(home), RunConfig(), 0).signer)
    return path


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str]) -> Callable[..., PolicyDifference]:
    def call(first: object, second: object, **options: Any) -> PolicyDifference:
        diff_policies(str(first), str(second), **{"grown": 0, **options}, as_json=True)
        return PolicyDifference.model_validate_json(capsys.readouterr().out)

    return call


def test_a_policy_differs_from_waiting_by_the_probability_that_it_acts(
    log: Path, policy: Path, report: Callable[..., PolicyDifference], home: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    found = report(policy, "wait", snapshot=str(log), grown=1, out=page)
    assert (found.second, found.second_digest, found.episodes, found.hosts) == ("wait", None, 43, 40)
    assert found.left_out == {"branches, which repeat states": 6}
    assert 0.0 < found.disagreement.value < 1.0
    assert found.by_operation == found.disagreement, "waiting has no slot and no blueprint"
    assert found.disagreement.lower < found.disagreement.value < found.disagreement.upper
    assert all(change.second == "wait" for change in found.changes)
    counts = {by: sum(group.states for group in found.groups if group.by == by) for by in ("family", "epoch", "seeds")}
    assert counts == dict.fromkeys(counts, found.states)
    mean = sum(group.states * group.disagreement.value for group in found.groups if group.by == "family")
    assert mean / found.states == pytest.approx(found.disagreement.value)
    assert len({(one.set, one.host_key) for one in found.examples}) == len(found.examples)
    worst = [one.disagreement for one in found.examples]
    assert worst == sorted(worst, reverse=True)
    (pair,) = found.grown
    assert pair.second_attribution is not None and pair.second_attribution.seeds == [], "wait grows nothing"
    assert page.read_text().count("data:image/png;base64,") == 3 + 2
    assert list((home / "data" / "receipts" / "diff-policies").glob("*.json"))
    turned = report("wait", policy, snapshot=str(log))
    assert turned.disagreement == found.disagreement
    assert [(one.second, one.first) for one in turned.changes] == [(one.first, one.second) for one in found.changes]
    fewer = report(policy, "wait", snapshot=str(log), episodes=10)
    assert (fewer.episodes, fewer.left_out["beyond --episodes"]) == (10, 33)
    assert (home / "data" / "runs" / "differences" / f"{found.first_digest[:12]}-wait.html").is_file()


def test_a_host_of_two_seeds_shows_what_each_adds_and_what_both_add_together(
    log: Path, home: Path, report: Callable[..., PolicyDifference], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Home(home).create()
    key = next(key for key in draw_keys("compound", Split.TEST, 6) if identify("compound", [key])[0].family == "both")
    monkeypatch.setattr("simic.app.comparisons.policy_difference.draw_keys", lambda *_: [key])
    page = tmp_path / "page.html"
    (grown,) = report("oracle", "wait", snapshot=str(log), grown=1, out=page, world_set="compound").grown
    account = grown.first_attribution
    assert account is not None and len(account.seeds) == 2
    gain = account.everything - account.nothing
    assert sum(seed.shapley for seed in account.seeds) == pytest.approx(gain)
    alone = [2 * seed.shapley - seed.leave_one_out for seed in account.seeds]
    (pair,) = account.pairs
    assert pair.interaction == pytest.approx(gain - sum(alone))
    assert "together minus alone</th>" in page.read_text()


def test_a_store_that_fails_loses_no_result(
    log: Path, policy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def busy(*_: object) -> None:
        raise TransientError("MLflow's database is locked")

    monkeypatch.setattr("simic.app.comparisons.policy_difference.log_instrument", busy)
    with pytest.raises(TransientError, match="locked"):
        diff_policies(str(policy), "wait", snapshot=str(log), grown=0, as_json=True)
    assert PolicyDifference.model_validate_json(capsys.readouterr().out).second == "wait"


def test_what_cannot_be_compared_is_refused(log: Path, policy: Path, tmp_path: Path) -> None:
    given = {"snapshot": str(log), "grown": 0}
    with pytest.raises(ConfigError, match="two different policies, found wait and wait"):
        diff_policies("wait", "wait", **given)
    with pytest.raises(ConfigError, match="draws its actions at random"):
        diff_policies("wait", "random", **given)
    with pytest.raises(ConfigError, match="not a controller"):
        diff_policies("wait", "nothing", **given)
    with pytest.raises(ConfigError, match=r"--out expects the name of an \.html file"):
        diff_policies("wait", str(policy), **given, out=tmp_path / "page.txt")
    branches = tmp_path / "branches"
    write_snapshot(branches, [one for one in bandit_branches(range(3)) if one.branch_of], change=with_terms)
    with pytest.raises(ConfigError, match="no episode besides branches"):
        diff_policies("wait", str(policy), snapshot=str(branches), grown=0)
    (policy / "weights.safetensors").write_bytes(b"")
    with pytest.raises(IntegrityError):
        diff_policies("wait", str(policy), **given)
