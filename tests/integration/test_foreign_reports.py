"""Reports of a framework that Simic has no code of: the example runs from its log to decisions, as the page says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.builders.deciding_policies import sealed_decider

import simic
from simic.app import artifacts, data, training
from simic.app.container import Container
from simic.app.evidence import evaluation
from simic.app.names.blueprint_vocabulary import vocabulary
from simic.bus.protocol import Line
from simic.contracts.errors import ConfigError, ContractError
from simic.controllers.policy_files import load_policy
from simic.ingestion.check import ReportCheck
from simic.runtime.clock import utc_now
from simic.runtime.home import Home
from simic.runtime.settings import load_profile
from simic.trust.seal import MANIFEST_NAME, seal

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "foreign_reports"
PAGE = ROOT / "docs" / "reports.md"
SMALL = {
    "train.cloning_passes": 1, "train.value_passes": 1, "train.vtrace_passes": 2, "train.min_experiences": 100,
    "train.network.hidden": 16,
}  # fmt: skip
GRAFTS = {"split_unit", "stack_layer"}


def written(*arguments: str) -> list[bytes]:
    command = [sys.executable, EXAMPLE / "graftnet.py", *arguments]
    return subprocess.run(command, capture_output=True, check=True, timeout=60).stdout.splitlines()


def checked(lines: list[bytes], **settings: Any) -> ReportCheck:
    config = load_profile(str(EXAMPLE / "lab.toml"), settings).ingest
    check = ReportCheck(config, frozenset(vocabulary(config)), utc_now)
    assert list(check.faults(Line(number, line, None) for number, line in enumerate(lines, start=1))) == []
    return check


@pytest.fixture(scope="module")
def lines() -> list[bytes]:
    return written("--networks", "50")


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> Container:
    home = Home(tmp_path_factory.mktemp("lab"))
    home.create()
    incoming = home.spool / "tamiyo.field_reports" / "incoming"
    incoming.mkdir(parents=True)
    (incoming / "reports.jsonl").write_bytes(b"\n".join(lines))
    return Container(home, load_profile(str(EXAMPLE / "lab.toml"), SMALL), 0)


@pytest.fixture
def graftnet(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield import_module("try_policy")
    for name in ("try_policy", "graftnet"):
        sys.modules.pop(name)


def test_the_page_shows_the_episode_that_the_example_writes_and_it_is_whole() -> None:
    page = PAGE.read_text("utf-8")
    block = page.partition("```json\n")[2].partition("```")[0]
    decoder, shown, at = json.JSONDecoder(), [], 0
    while at < len(block):
        report, end = decoder.raw_decode(block, at)
        shown.append(report)
        at = end + 1
    call = page.partition("`python graftnet.py ")[2].partition("`")[0].split()
    found = written(*call)
    assert shown == [json.loads(line) for line in found]
    assert [report["action"]["op"] for report in shown] == ["WAIT", "GERMINATE", "WAIT", "FOSSILIZE"]
    check = checked(found)
    assert (check.accepted, check.complete, check.incomplete) == (4, 1, 0)


def test_a_log_without_code_of_its_blueprints_becomes_a_policy_that_chooses_them(
    container: Container, lines: list[bytes], graftnet: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    assert checked(lines).complete == 50
    receipt = data.ingest(container)
    assert (receipt.landed, receipt.quarantined) == (400, 0)
    snapshot = data.curate(container)
    assert (snapshot.rows_out, snapshot.rejected) == (400, {})
    report = training.train(container, artifacts.resolve_snapshot(container, None), None, resume=False)
    assert report.sets == ["graftnet"]
    assert "learned from reports of graftnet, whose hosts Simic cannot grow" in caplog.text
    card = load_policy(Path(report.path)).card
    assert set(card.blueprints) > GRAFTS
    assert set(card.germinated or ()) == GRAFTS
    policy = simic.load_policy(report.digest, home=simic.Home(container.home.root))
    state, legal = (json.loads(lines[1])[name] for name in ("state", "available"))
    action, odds = policy.decide(state, legal), policy.explain(state, legal)
    assert action.op.value in ("WAIT", "GERMINATE")
    assert odds.policy == report.digest
    assert set(graftnet.compare(policy, 2)) == {"never growing", "random", "policy"}


def test_episodes_of_two_horizons_train_and_judge_one_policy(tmp_path: Path, lines: list[bytes]) -> None:
    home = Home(tmp_path)
    home.create()
    incoming = home.spool / "tamiyo.field_reports" / "incoming"
    incoming.mkdir(parents=True)
    longer = written("--networks", "20", "--first-key", "100", "--epochs", "12")
    (incoming / "reports.jsonl").write_bytes(b"\n".join([*lines, *longer]))
    settings = {**SMALL, "curate.also_horizons": [12]}
    container = Container(home, load_profile(str(EXAMPLE / "lab.toml"), settings), 0)
    data.ingest(container)
    snapshot = data.curate(container)
    assert (snapshot.rows_out, snapshot.rejected) == (400 + 240, {})
    policy = training.train(container, artifacts.resolve_snapshot(container, None), None, resume=False).digest
    found = evaluation.evaluate(
        container, evaluation.EvaluationChoice(policy=policy, is_exploring=True, with_model=False)
    )
    assert (found.horizons, found.sets) == ([8, 12], ["graftnet"])
    steps = pq.read_table(Path(snapshot.path) / "steps.parquet", columns=["run_id", "split"]).to_pylist()
    judged = {row["run_id"] for row in steps if row["split"] != "train"}
    assert found.episodes == len(judged) > 10
    points = [_points(report) for report in map(json.loads, [*lines, *longer]) if report["run_id"] in judged]
    assert found.behaviour_return is not None
    assert found.behaviour_return.value == pytest.approx(sum(points) / len(judged), abs=1e-3)
    assert {row.estimator for row in found.rows if row.value is not None} == {"IS", "PDIS", "WIS", "PDWIS"}


def _points(report: dict[str, Any]) -> float:
    """Points of ``basic`` as docs/reports.md gives them, with the rent of lab.toml."""
    metrics = report["metrics"]
    gain = metrics["validation_accuracy_after"] - metrics["validation_accuracy_before"]
    return float(100 * gain - 3 * metrics["rent_parameters"] / 4000 / report["state"]["horizon"])


def test_an_export_knows_the_declared_blueprints(container: Container, tmp_path: Path) -> None:
    snapshot = artifacts.resolve_snapshot(container, None)
    card = data.export_snapshot(container, snapshot.digest, "pyg", tmp_path / "out", "validation")
    assert card.steps == 8 * snapshot.episodes["validation"] > 0
    assert {f"blueprint={name}" for name in GRAFTS} <= set(card.features["slot"])


def test_an_evaluation_names_unknown_blueprints_before_it_reads_the_log(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(evaluation, "_read")
    undeclared = Container(container.home, load_profile("default"), 0)
    with pytest.raises(ConfigError, match=r"split_unit, stack_layer, which are unknown here; give the --profile"):
        evaluation.evaluate(undeclared, evaluation.EvaluationChoice(policy="wait"))
    path = container.home.root / "decider"
    sealed_decider(path)
    (path / MANIFEST_NAME).unlink()
    seal(path, container.signer)
    with pytest.raises(ContractError, match="split_unit, stack_layer, which the policy does not know; evaluate one"):
        evaluation.evaluate(container, evaluation.EvaluationChoice(policy=str(path)))


def test_training_without_the_declaration_says_which_blueprints_are_unknown(container: Container) -> None:
    undeclared = Container(container.home, load_profile("default", {"train.start": "scratch"}), 0)
    with pytest.raises(ContractError, match=r"unknown values .*split_unit.*ingest\.declared_blueprints"):
        training.train(undeclared, artifacts.resolve_snapshot(container, None), None, resume=False)
