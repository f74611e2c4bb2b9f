"""The verb that evaluates a policy on a log: which episodes it uses, what it says, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.builders.deciding_policies import sealed_decider
from support.builders.learning import bandit_branches, bandit_episodes
from support.builders.snapshots import reseal, write_snapshot

from simic.app.container import Container
from simic.cli.evaluate import evaluate
from simic.contracts.errors import ConfigError, ContractError, IntegrityError
from simic.contracts.results.off_policy import OffPolicyReport
from simic.contracts.results.receipts import TrainingReport
from simic.contracts.settings.run import RunConfig
from simic.contracts.splits import Split, split_of
from simic.runtime.home import Home
from simic.snapshots.parts import REJECTED_NAME
from simic.trust.seal import MANIFEST_NAME, seal
from simic.validation import off_policy

KEYS = range(240)


@pytest.fixture(autouse=True)
def _made_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Home(home).create()
    monkeypatch.setattr(off_policy, "SAMPLES", 200)


Rows = list[dict[str, Any]]


def with_terms(rows: Rows) -> Rows:
    return [{**row, "reward_progress": row["reward"], "reward_rent": 0.0, "reward_penalty": 0.0} for row in rows]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "snapshot"
    write_snapshot(path, [*bandit_episodes(KEYS, noise=0.01), *bandit_branches(range(3))], change=with_terms)
    write_rejected(path, 0)
    return path


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str]) -> Callable[..., OffPolicyReport]:
    def call(policy: str, **options: Any) -> OffPolicyReport:
        evaluate(policy, **{"model": False, **options}, as_json=True)
        return OffPolicyReport.model_validate_json(capsys.readouterr().out)

    return call


def test_waiting_is_evaluated_from_the_episodes_that_happen_to_wait(log: Path, report, home: Path) -> None:
    found = report("wait", snapshot=str(log))
    rows = {row.estimator: row for row in found.rows}
    assert set(rows) == {"IS", "PDIS", "WIS", "PDWIS"}
    assert rows["WIS"].value.value == pytest.approx(0.0, abs=0.5), "waiting earns nothing on any host"
    assert rows["WIS"].overlap == pytest.approx(1 / 3, abs=0.1)
    assert rows["WIS"].largest_weight == pytest.approx(3.0, abs=1e-5)
    assert found.behaviour_return.value == pytest.approx(-5 / 3, abs=1.5)
    assert (found.episodes, found.hosts, found.behaviours) == (240, 240, {"explore": 240})
    assert found.left_out == {
        "branches, whose action was not drawn": 6, "repeated by branches, without exploration": 3,
    }  # fmt: skip
    assert [check.name for check in found.checks if not check.passes] == ["mean weight"], "0 and 3 are noisy weights"
    assert found.verdict.value == "insufficient evidence"
    assert list((home / "data" / "receipts" / "evaluate").glob("*.json"))
    again = report("wait", snapshot=str(log), episodes=40)
    assert (again.episodes, again.verdict.value) == (40, "insufficient evidence")
    assert again.left_out["beyond --episodes"] == 200


def given_policy(home: Path) -> tuple[Container, Path, str]:
    """A policy that this home's key sealed, of which the home has no receipt."""
    container, path = Container(Home(home), RunConfig(), 0), home / "given" / "policy"
    path.parent.mkdir()
    sealed_decider(path)
    (path / MANIFEST_NAME).unlink()
    return container, path, seal(path, container.signer).digest


def write_rejected(snapshot: Path, count: int, reason: str = "unfinished", begin: str = "0") -> None:
    """Write what curation left out: ``count`` episodes of one report, on hosts of the log."""
    names = {"run_id": [f"{begin}{key:031x}" for key in range(count)], "reason": [reason] * count}
    hosts = {"set": ["benchmark"] * count, "host_key": list(range(count))}
    makers = {"controller": ["explore"] * count, "policy_version": [None] * count}
    columns = {**names, **hosts, **makers}
    table = pa.table(columns, schema=pa.schema(map(_typed, columns)))
    pq.write_table(table, snapshot / REJECTED_NAME)
    reseal(snapshot)


def write_log_with_guest(snapshot: Path, keys: range) -> Path:
    """Write a log in which the controller ``guest`` grew the hosts ``keys``; return its folder."""

    def with_guest(rows: Rows) -> Rows:
        return [{**row, "controller": "guest"} if row["host_key"] in keys else row for row in with_terms(rows)]

    write_snapshot(snapshot, bandit_episodes(KEYS, noise=0.01), change=with_guest)
    return snapshot


def _typed(name: str) -> pa.Field:
    return pa.field(name, pa.int64() if name == "host_key" else pa.string())


@pytest.mark.parametrize(
    ("count", "reason", "share", "passes"),
    [(2, "unfinished", 2 / 242, True), (3, "unfinished", 3 / 243, False), (30, "stale", 0.0, True)],
)
def test_a_log_without_its_crashed_trainings_is_insufficient(
    tmp_path: Path, report, count: int, reason: str, share: float, passes: bool
) -> None:
    """Crashed trainings leave no return, so a log of the others flatters whoever crashes."""
    snapshot = tmp_path / "snapshot"
    write_snapshot(snapshot, bandit_episodes(KEYS, noise=0.01), change=with_terms)
    write_rejected(snapshot, count, reason)
    found = report("wait", snapshot=str(snapshot))
    (check,) = (check for check in found.checks if check.name == "share cut off before their end")
    assert check.passes is passes
    assert check.found == pytest.approx(share)
    assert passes or found.verdict.value == "insufficient evidence"


@pytest.mark.parametrize(("episodes", "share"), [(241, 3 / 243), (240, 3 / 243), (239, 0.0)])
def test_late_crashes_count_unless_episodes_are_beyond_the_limit(
    tmp_path: Path, report, episodes: int, share: float
) -> None:
    """The run ids of the crashed trainings come after those of the 240 whole episodes."""
    snapshot = tmp_path / "snapshot"
    write_snapshot(snapshot, bandit_episodes(KEYS, noise=0.01), change=with_terms)
    write_rejected(snapshot, 3, begin="g")
    found = report("wait", snapshot=str(snapshot), episodes=episodes)
    (check,) = (check for check in found.checks if check.name == "share cut off before their end")
    assert check.found == pytest.approx(share)
    assert found.left_out.get("beyond --episodes", 0) == 240 - found.episodes == max(0, 240 - episodes)


@pytest.mark.parametrize(
    ("few", "left_out", "hosts"), [(49, 49, 191), (50, None, 240)], ids=["left out", "judged by itself"]
)
def test_each_controller_of_a_log_judges_with_50_hosts_or_not_at_all(
    tmp_path: Path, report, few: int, left_out: int | None, hosts: int
) -> None:
    snapshot = write_log_with_guest(tmp_path / "snapshot", range(few))
    write_rejected(snapshot, 0)
    found = report("wait", snapshot=str(snapshot))
    assert found.left_out.get("of a set and controller with fewer than 50 hosts") == left_out
    assert found.hosts == hosts
    (check,) = (check for check in found.checks if check.name == "mean weight by set and controller")
    assert check.passes
    assert ("guest" in found.behaviours) is (left_out is None)


@pytest.mark.parametrize(("count", "share"), [(1, 1 / 61), (3, 3 / 63)])
def test_crashes_of_one_controller_count_against_its_own_episodes(
    tmp_path: Path, report, count: int, share: float
) -> None:
    snapshot = write_log_with_guest(tmp_path / "snapshot", range(60, 240))
    write_rejected(snapshot, count)
    (check,) = (one for one in report("wait", snapshot=str(snapshot)).checks if one.name.startswith("share cut off"))
    assert (check.found, check.passes) == (pytest.approx(share), False)


def test_a_log_that_nobody_made_is_refused_with_those_that_there_are(log: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"--log: no episode of this snapshot is of 'explor'; expected one of explore"
    ):
        evaluate("wait", snapshot=str(log), model=False, log="explor")


def test_a_policy_of_unknown_training_is_evaluated_on_held_out_hosts_only(log: Path, report, home: Path) -> None:
    _, policy, _ = given_policy(home)
    found = report(str(policy), snapshot=str(log))
    held_out = [key for key in KEYS if split_of("benchmark", key) is not Split.TRAIN]
    assert found.episodes == len(held_out)
    assert found.left_out["on hosts that it learned from"] == len(KEYS) - len(held_out)
    assert "unknown" in found.training_hosts
    assert found.verdict.value == "insufficient evidence"
    exploring = report(str(policy), snapshot=str(log), exploring=True)
    assert exploring.rows[0].overlap == 1.0, "with exploration every logged action is possible"
    assert found.rows[0].overlap < 1.0


def test_exactly_the_hosts_of_a_known_training_are_left_out(log: Path, report, home: Path, tmp_path: Path) -> None:
    """Those of the training split of its snapshot; its held-out hosts are evaluated on."""
    container, policy, digest = given_policy(home)
    learned = write_snapshot(tmp_path / "s", bandit_episodes(range(100), noise=0.0), change=with_terms)
    Path(learned.path).rename(container.home.snapshots / learned.digest[:16])
    training = TrainingReport(
        **container.provenance._asdict(), started_at=learned.started_at, finished_at=learned.finished_at,
        digest=digest, path=str(policy), snapshot_digest=learned.digest, start_digest=None, updates=1, episodes=100,
        passes=1.0, metrics={}, curves_path="curves",
    )  # fmt: skip
    container.save_receipt(training)
    found = report(str(policy), snapshot=str(log))
    trained = [key for key in range(100) if split_of("benchmark", key) is Split.TRAIN]
    assert found.left_out["on hosts that it learned from"] == len(trained)
    assert found.episodes == len(KEYS) - len(trained)
    path = next((home / "data" / "receipts" / "train").glob("*.json"))
    path.write_text(path.read_text().replace(learned.digest, "0" * 64))
    with pytest.raises(IntegrityError, match="not trusted"):
        evaluate(str(policy), snapshot=str(log), model=False)


def test_a_model_brings_the_doubly_robust_estimators(log: Path, report) -> None:
    found = report("wait", snapshot=str(log), model=True, override=["train.q_updates=6", "train.network.hidden=8"])
    assert [row.estimator for row in found.rows] == ["IS", "PDIS", "WIS", "PDWIS", "DR", "WDR", "MAGIC"]
    assert found.judged_by == ["PDWIS", "WDR"]
    assert {row.n for row in found.rows} == {240}


@pytest.mark.parametrize("is_sufficient", [False, True])
def test_values_are_fitted_only_where_they_can_change_the_verdict(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_sufficient: bool
) -> None:
    if is_sufficient:
        monkeypatch.setattr(off_policy, "LEAST_WEIGHT", -100.0)
        monkeypatch.setattr(off_policy, "WEIGHT_DEVIATIONS", 6.0)
    evaluate("wait", snapshot=str(log), override=["train.q_updates=6", "train.network.hidden=8"])
    printed = " ".join(capsys.readouterr().out.split())
    assert ("WDR and MAGIC" not in printed) is is_sufficient
    assert ("by PDWIS and WDR" in printed) is is_sufficient
    assert ("insufficient evidence" in printed) is not is_sufficient


def test_the_page_names_verdict_reasons_and_limits(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate("heuristic", snapshot=str(log), model=False, return_range="-100:100", episodes=40)
    printed = capsys.readouterr().out
    for words in (
        "insufficient evidence",
        "effective number of hosts",
        "at least -",
        "Bernstein",
        "no trial",
        "plan book",
    ):
        assert words in printed


def test_an_empty_log_is_insufficient_and_says_how_to_make_one(
    tmp_path: Path, report, capsys: pytest.CaptureFixture[str]
) -> None:
    write_snapshot(tmp_path / "s", bandit_branches(range(3)), change=with_terms)
    found = report("wait", snapshot=str(tmp_path / "s"))
    assert (found.episodes, found.rows, found.verdict.value) == (0, [], "insufficient evidence")
    assert found.left_out["repeated by branches, without exploration"] == 3
    evaluate("wait", snapshot=str(tmp_path / "s"), model=False)
    assert "`simic collect --controller explore`" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("policy", "options", "message"),
    [
        ("random", {}, "draws its actions"),
        ("nobody", {}, "not a controller"),
        ("wait", {"exploring": True}, "does not explore"),
        ("wait", {"return_range": "3"}, "LOW:HIGH"),
        ("wait", {"return_range": "nan:1"}, "LOW:HIGH"),
        ("wait", {"return_range": "-1e308:1e308"}, "LOW:HIGH"),
        ("wait", {"return_range": "0:1"}, "returns must lie"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(log: Path, policy: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        evaluate(policy, snapshot=str(log), model=False, **options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: [{**row, "log_prob_behaviour": None} for row in rows], "log_prob_behaviour"),
        (lambda rows: [{**row, "reward_progress": float("nan")} for row in rows], "finite"),
    ],
)
def test_rows_without_propensity_or_reward_are_refused(tmp_path: Path, change, message: str) -> None:
    write_snapshot(tmp_path / "s", bandit_episodes(range(4)), change=lambda rows: change(with_terms(rows)))
    with pytest.raises(ContractError, match=message):
        evaluate("wait", snapshot=str(tmp_path / "s"), model=False)
