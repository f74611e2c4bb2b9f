"""Views over training curves and trials: every number of a receipt or a curves file is a row, and nothing else is."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.builders.judged_candidates import SIGNER
from support.builders.reports import episode, episodes
from support.homes.pipeline import NOW, FixedClock, curate_all, land

import simic.curation
from simic.app.receipts import ReceiptStore
from simic.catalogue.query import query
from simic.contracts.errors import IntegrityError
from simic.contracts.results.gate import ValidationReport
from simic.contracts.results.receipts import TrainingReport
from simic.contracts.results.trials import ControllerTrial, Estimate, FamilyTrial, TrialReport
from simic.contracts.settings.safety import StopCause, TrainingStop
from simic.runtime.home import Home
from simic.trust.keys import Keyring

RECEIPT: dict[str, Any] = {
    "code_version": "x", "config_digest": "c" * 64, "seed": 3, "started_at": NOW, "finished_at": NOW,
}  # fmt: skip
FAMILIES = ["compact", "noisy", "compact"]
KEYS = [5, 6, 9]
POLICY, CHAMPION, SNAPSHOT = "a" * 64, "b" * 64, "d" * 64
CANDIDATE_RETURNS = [1.5, -2.0, 4.0]


def put(home: Home, receipt: Any) -> None:
    ReceiptStore(home, FixedClock(), lambda: SIGNER, Keyring(home.keys)).save(receipt)


def summary(values: list[float], *, is_wait: bool) -> dict[str, Any]:
    mean = sum(values) / len(values)
    has_interval = len(values) > 1 and not is_wait
    interval = {"mean": mean, "lower": mean - 1, "upper": mean + 1, "confidence": 0.95, "n": len(values)}
    return {
        "episodes": len(values), "mean_return": mean, "test_accuracy": 0.5, "validation_accuracy": 0.625,
        "over_wait": Estimate.model_validate(interval) if has_interval else None, "committed_parameters": 12.5,
        "test_over_wait": Estimate(mean=0.1, lower=0.05, upper=0.2, confidence=0.95, n=2) if has_interval else None,
        "host_parameters": 50.0, "extra_compute": 0.125, "controller_compute": 0.25, "probe_compute": 0.5,
    }  # fmt: skip


def controller(name: str, returns: list[float]) -> ControllerTrial:
    by_family = {}
    for family in dict.fromkeys(FAMILIES):
        values = [value for value, other in zip(returns, FAMILIES, strict=True) if other == family]
        by_family[family] = FamilyTrial(**summary(values, is_wait=name == "wait"))
    return ControllerTrial(
        **summary(returns, is_wait=name == "wait"), controller=name, illegal_actions=0, governor_events=1,
        by_family=by_family, returns=returns, test_accuracies=[0.25, 0.5, 0.75], rents=[0.5, 0.0, 2.0],
    )  # fmt: skip


def make_trials(*others: ControllerTrial) -> TrialReport:
    rows = [controller("wait", [0.5, 0.0, 1.0]), controller("candidate", CANDIDATE_RETURNS), *others]
    return TrialReport(
        **RECEIPT, set="benchmark", host_keys=KEYS, families=FAMILIES, controllers=rows, plans_digest=None
    )


@pytest.fixture
def judged(tmp_path: Path) -> Home:
    """A home with the trials of one validation and of one `simic trials`."""
    home = Home(tmp_path / "it's a [home]*")
    home.create()
    put(home, make_trials())
    report = ValidationReport(
        **RECEIPT, ordinal=1, policy_digest=POLICY, champion_digest=CHAMPION, snapshot_digest=SNAPSHOT,
        trials=make_trials(), differences={}, training_metrics={"loss": 1.0}, figures={},
    )  # fmt: skip
    put(home, report)
    return home


def test_trials_have_a_row_per_controller_over_all_hosts_and_per_family(judged: Home) -> None:
    rows = query(judged, "FROM trials ORDER BY receipt, controller, family NULLS FIRST")
    assert len(rows) == 2 * 2 * 3
    assert {(row["stage"], row["policy"], row["champion"], row["snapshot"]) for row in rows} == {
        ("trials", None, None, None),
        ("validate", POLICY, CHAMPION, SNAPSHOT),
    }
    overall, compact, noisy = [row for row in rows if row["stage"] == "validate" and row["controller"] == "candidate"]
    assert (overall["family"], overall["episodes"], overall["mean_return"]) == (None, 3, pytest.approx(3.5 / 3))
    assert (compact["family"], compact["episodes"], compact["over_wait"]) == ("compact", 2, 2.75)
    assert (compact["over_wait_lower"], compact["over_wait_upper"], compact["confidence"]) == (1.75, 3.75, 0.95)
    tested = [compact[f"test_over_wait{bound}"] for bound in ("", "_lower", "_upper")]
    assert (tested, noisy["test_over_wait"]) == ([0.1, 0.05, 0.2], None)
    costs = ("host_parameters", "extra_compute", "controller_compute", "probe_compute", "scored_by")
    assert [tuple(row[name] for name in costs) for row in rows] == [(50.0, 0.125, 0.25, 0.5, "validation")] * len(rows)
    assert (noisy["family"], noisy["over_wait"], noisy["illegal_actions"]) == ("noisy", None, None)
    assert (overall["illegal_actions"], overall["governor_events"], overall["seed"]) == (0, 1, 3)
    assert overall["finished_at"] == NOW.isoformat()
    for row in rows:
        assert (judged.receipts / row["receipt"]).is_file()


def test_receipts_of_versions_without_costs_have_rows_too(judged: Home) -> None:
    """Their fields are null, not 0."""
    for path in judged.receipts.glob("*/*.json"):
        text = path.read_text()
        for name in (
            "host_parameters", "extra_compute", "test_over_wait", "rents", "by_rent", "static", "scored_by",
            "test_returns", "controller_compute", "probe_compute",
        ):  # fmt: skip
            text = text.replace(f'"{name}":', f'"of_another_version_{name}":')
        path.write_text(text)
    rows = query(judged, "FROM trials")
    assert {(row["host_parameters"], row["extra_compute"], row["test_over_wait"]) for row in rows} == {(None,) * 3}
    assert {(row["controller_compute"], row["scored_by"]) for row in rows} == {(None, "validation")}
    assert {row["rent_points"] for row in query(judged, "FROM trial_episodes")} == {None}


def test_an_arm_that_searches_is_compared_with_waiting_by_test_accuracy(judged: Home) -> None:
    best = controller("hindsight", [5.0, 6.0, 7.0]).model_copy(update={"scored_by": "test"})
    report = make_trials(best)
    wait = report.controllers[0].model_copy(update={"test_returns": [2.0, 1.0, 3.0]})
    put(judged, report.model_copy(update={"controllers": [wait, best]}))
    rows = query(judged, "FROM trial_episodes WHERE controller = 'hindsight' ORDER BY host_key")
    assert [row["over_wait"] for row in rows] == [3.0, 5.0, 4.0]
    found = query(judged, "FROM trials WHERE controller = 'hindsight' AND family IS NULL")
    assert [row["scored_by"] for row in found] == ["test"]


def test_trial_episodes_have_a_row_per_host_paired_with_wait(judged: Home) -> None:
    rows = query(judged, "FROM trial_episodes WHERE stage = 'trials' ORDER BY controller, host_key")
    assert [(row["host_key"], row["family"], row["controller"]) for row in rows] == [
        (key, family, name) for name in ("candidate", "wait") for key, family in zip(KEYS, FAMILIES, strict=True)
    ]
    candidate, wait = rows[:3], rows[3:]
    assert [row["episode_return"] for row in candidate] == CANDIDATE_RETURNS
    assert [row["over_wait"] for row in candidate] == [1.0, -2.0, 3.0]
    assert [row["over_wait"] for row in wait] == [0.0, 0.0, 0.0]
    assert [row["test_accuracy"] for row in candidate] == [0.25, 0.5, 0.75]
    assert [row["rent_points"] for row in wait] == [0.5, 0.0, 2.0]
    assert query(judged, "SELECT count(*) AS n FROM trial_episodes") == [{"n": 12}]


def test_a_damaged_receipt_fails_the_views_that_read_it_and_no_other(judged: Home) -> None:
    path = next((judged.receipts / "trials").glob("*.json"))
    path.write_text(path.read_text()[:-20])
    with pytest.raises(IntegrityError, match=re.escape(path.name)):
        query(judged, "FROM trials")
    assert query(judged, "FROM steps") == []


def make_curves(home: Home, policy: str, text: str) -> None:
    home.curves.mkdir(parents=True, exist_ok=True)
    path = home.curves / f"{policy}.jsonl"
    path.write_text(text)
    report = TrainingReport(
        **RECEIPT, digest=policy, path=str(home.policies / policy), snapshot_digest=SNAPSHOT, start_digest=None,
        updates=2, episodes=3, passes=1.0, metrics={}, curves_path=str(path),
    )  # fmt: skip
    put(home, report)


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)
VALUES = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.dictionaries(NAMES, VALUES, min_size=1, max_size=4), max_size=5), st.booleans())
def test_every_logged_metric_is_one_row(
    tmp_path_factory: pytest.TempPathFactory, lines: list[dict[str, float | None]], is_torn: bool
) -> None:
    """Rows out = metrics in, value by value; a line torn by a kill is left out."""
    home = Home(tmp_path_factory.mktemp("home"))
    home.create()
    text = "".join(json.dumps({"step": step, "metrics": metrics}) + "\n" for step, metrics in enumerate(lines))
    make_curves(home, POLICY, text + ('{"step": 99, "met' if is_torn else ""))
    rows = query(home, "FROM curves")
    found = {(row["policy"], row["step"], row["metric"]): row["value"] for row in rows}
    wanted = {(POLICY, step, name): value for step, metrics in enumerate(lines) for name, value in metrics.items()}
    assert len(rows) == len(wanted)
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert found[key] is None if value is None else math.isclose(found[key], value, rel_tol=1e-15), key


def test_curves_without_their_file_or_their_receipt_are_no_rows(tmp_path: Path) -> None:
    home = Home(tmp_path)
    make_curves(home, POLICY, '{"step": 0, "metrics": {"loss": 1.5}}\n')
    make_curves(home, CHAMPION, "")
    (home.curves / f"{CHAMPION}.jsonl").unlink()
    (home.curves / "stray.jsonl").write_text("{")
    assert query(home, "FROM curves") == [{"policy": POLICY, "step": 0, "metric": "loss", "value": 1.5}]


def test_low_a_hopeless_training_is_told_from_one_that_finished(tmp_path: Path) -> None:
    home = Home(tmp_path)
    make_curves(home, CHAMPION, "")
    stop = TrainingStop(cause=StopCause.NO_PROGRESS, phase="vtrace", updates=2, planned_updates=9, detail="it stood")
    report = TrainingReport(
        **RECEIPT, digest=POLICY, path="p", snapshot_digest=SNAPSHOT, start_digest=None, updates=2, episodes=3,
        passes=1.0, metrics={}, curves_path="none", stopped=stop,
    )  # fmt: skip
    put(home, report)
    rows = query(home, "SELECT policy, stopped FROM trainings ORDER BY policy")
    assert rows == [{"policy": POLICY, "stopped": "no_progress"}, {"policy": CHAMPION, "stopped": None}]


def test_internal_relations_are_out_of_sight(judged: Home) -> None:
    shown = {row["name"] for row in query(judged, "SHOW TABLES")}
    assert {"trials", "curves", "steps"} <= shown
    assert not shown & {"landed", "manifests", "trial_reports", "snapshot_files", "gate_decisions"}
    names = query(judged, "SELECT table_name AS n FROM information_schema.tables WHERE table_schema = 'main'")
    assert {row["n"] for row in names} == shown


def test_every_reason_of_curation_has_its_message(tmp_path: Path) -> None:
    folder = Path(simic.curation.__file__).parent / "sql"
    text = "".join(path.read_text() for path in folder.glob("*.sql"))
    reasons = set(re.findall(r"THEN '(\w+)'\n", text)) | set(re.findall(r"'(\w+)'\)? AS reason", text))
    reasons |= set(re.findall(r"'(\w+)', (?:\w+\.)?reason\)", text)) | {"duplicate"}
    assert {"duplicate", "conflict", "same_content", "evicted", "expired", "broken_chain"} <= reasons
    view = (Path(simic.curation.__file__).parents[1] / "catalogue" / "views" / "11_rejected.sql").read_text()
    assert set(re.findall(r"WHEN '(\w+)' THEN '[A-Z].+\.'", view)) == reasons - {"train", "test"}
    home = Home(tmp_path)
    land(home, episodes(range(2)) + episode(8)[:5])
    curate_all(home)
    assert query(home, "SELECT DISTINCT reason, message FROM rejected") == [
        {"reason": "unfinished", "message": "The last step of the episode is missing."}
    ]
