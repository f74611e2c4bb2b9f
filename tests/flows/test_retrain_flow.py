"""The flow under real Prefect, its registry and its gate; only the long stages are stood in for."""

from __future__ import annotations

import errno
import json
import os
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NoReturn
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactCollectionFilter, ArtifactCollectionFilterKey
from support.fakes import stages as fake_stages
from support.fakes.stages import calls
from support.servers.flow_runs import FlowRuns

from flows.retrain import run
from simic.app.container import Container
from simic.contracts.controllers import Plan
from simic.contracts.errors import ConfigError, ResourceLimitError, TrainingError, TransientError
from simic.contracts.results.gate import Verdict
from simic.contracts.results.run import RunReceipt
from simic.controllers.plans import load_plans
from simic.registry.mlflow_store import open_client
from simic.runtime.home import Home
from simic.runtime.locks import exclusive
from simic.runtime.progress import Advance, NoProgress
from simic.runtime.settings import load_profile
from simic.validation.baselines.plan_book import write_book

pytestmark = pytest.mark.usefixtures("prefect_server")

FIRST_RUN = ["collect", "ingest", "curate", "train", "collect", "ingest", "curate", "train", "validate"]
RECEIPTS = "data/receipts"
WHOLE_RUN = [*FIRST_RUN, "record", "promote", "publish"]


@pytest.fixture(autouse=True)
def _stood_in(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_stages.install(monkeypatch, has_registry=False)


def shown_artifact(key: str) -> str:
    """The newest artifact of a key, as the Prefect UI shows it."""
    with get_client(sync_client=True) as client:
        (found,) = client.read_latest_artifacts(
            artifact_filter=ArtifactCollectionFilter(key=ArtifactCollectionFilterKey(any_=[key]))
        )
    return str(found.data)


class Told(NoProgress):
    """Remembers what was announced."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def task(self, name: str, total: int) -> AbstractContextManager[Advance]:
        self.names.append(name)
        return super().task(name, total)


def _stages(lines: list[str]) -> list[str]:
    return [line.split()[0] for line in lines]


def _run(seed: int = 0, **overrides: Any) -> RunReceipt:
    return run(profile="quick", seed=seed, overrides=overrides)


def test_a_run_that_could_not_be_judged_does_not_begin(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_container: Container, *, has_gate: bool) -> None:
        raise ConfigError("the plan book is outdated")

    monkeypatch.setattr("simic.app.runs.check_baselines", refuse)
    with pytest.raises(ConfigError, match="plan book is outdated"):
        _run()
    assert calls(home) == []


def test_from_nothing_to_a_champion_to_the_next_and_to_a_rejection(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With the real gate, registry and publication."""
    caplog.set_level("INFO", "simic")
    fake_stages.install(monkeypatch)
    first = _run()
    asked = calls(home)
    assert _stages(asked) == FIRST_RUN
    assert asked[0] == "collect 0 explore"
    assert asked[3].endswith("from nothing")
    assert asked[4] == f"collect 1 {first.trainings[0].digest[:6]}", "own episodes are grown by the newest policy"
    assert asked[7].endswith(f"from {first.trainings[0].digest[:6]}"), (
        "a round goes on with the policy of the one before"
    )
    assert asked[8] == f"validate {first.trainings[1].digest[:6]} against nobody"
    assert first.decision.accepted
    assert first.version is not None
    assert first.version.aliases == ["candidate", "champion"]
    assert first.publication is not None
    assert first.publication.delivered
    assert (len(first.collections), len(first.ingests), len(first.snapshots)) == (2, 2, 2)

    second = _run()
    later = calls(home)[len(asked) :]
    assert _stages(later) == FIRST_RUN[1:], "with a champion nothing is collected before training"
    assert later[2].endswith(f"from {first.version.digest[:6]}")
    assert later[-1].endswith(f"against {first.version.digest[:6]}")
    assert second.token != first.token
    assert second.start_digest == first.version.digest
    assert second.version is not None

    monkeypatch.setenv(fake_stages.REJECT, "1")
    third = _run()
    assert not third.decision.accepted
    assert third.version is None
    assert third.publication is None
    registry = Container(Home(home), load_profile("quick"), 0).registry
    present = registry.champion()
    assert present is not None
    assert present.digest == second.version.digest, "a rejection leaves the champion alone"
    assert registry.find("models:/tamiyo@candidate").digest == third.decision.policy_digest

    candidate = registry.find("models:/tamiyo@candidate")
    tags = open_client(Home(home).tracking_uri).get_run(candidate.mlflow_run_id).data.tags
    with get_client(sync_client=True) as client:
        assert client.read_flow_run(UUID(tags["flow_run"])).state_name == "Rejected"

    assert "ingest: 20 landed, 0 refused" in caplog.messages
    assert "round 1 of 1: ingest: 20 landed, 0 refused" in caplog.messages
    assert any(line.startswith("decide: rejected: ") for line in caplog.messages)
    shown = shown_artifact("champion")
    assert f"Live: version **{second.version.semantic_version}**" in shown
    assert f"`{second.version.digest}`" in shown
    assert f"`{third.decision.policy_digest}`" in shown
    assert "it was rejected: " in shown


def test_artifacts_that_prefect_does_not_take_fail_no_run_and_are_named_in_its_log(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_content: object, **_named: object) -> NoReturn:
        raise ConnectionError("the API is gone")

    monkeypatch.setattr("tasks.artifacts.create_markdown_artifact", refuse)
    monkeypatch.setattr("tasks.artifacts.create_table_artifact", refuse)
    assert _run().version is not None
    assert _stages(calls(home))[-1] == "publish"
    found = [line for line in caplog.messages if "the API is gone" in line]
    assert [line.split()[2] for line in found] == ["proof", "gate", "promoted", "champion"]


def test_what_is_shown_is_numbered_by_rounds_of_own_episodes(home: Path) -> None:
    """Wherever it is shown: a pipe has no bars below each other to be counted."""
    told = Told()
    run(profile="quick", seed=0, overrides={"collect.rounds": 2}, progress=told)
    stages = FIRST_RUN[:4]
    rounds = [f"round {number} of 2: {stage}" for number in (1, 2) for stage in stages]
    assert told.names[:13] == [*stages, *rounds, "validate"]


@pytest.mark.parametrize("place", ["train 2", "publish 1"])
def test_after_kill_9_the_same_command_goes_on_at_the_last_good_stage(
    home: Path, flow_runs: FlowRuns, place: str
) -> None:
    flow_runs.kill_at(place)
    before = calls(home)

    receipt = _run()

    assert receipt.is_resumed
    again = calls(home)[len(before) :]
    assert _stages(again) == WHOLE_RUN[len(before) - 1 :], "nothing before the kill is done again"
    assert again[0] == before[-1]
    assert not _run().is_resumed, "a run that ended is followed by a new one"


def test_further_sets_are_tried_before_the_decision_which_reads_them(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The candidate does harm on ``compound``."""
    caplog.set_level("INFO", "simic")
    receipt = _run(trial={"also_sets": ["varied", "benchmark", "varied"]})
    assert receipt.decision.accepted
    digest = receipt.decision.policy_digest
    asked = calls(home)
    judged = asked.index(f"validate {digest[:6]} against nobody")
    assert asked[judged - 1] == f"further varied {digest[:6]}"
    assert _stages(asked[judged + 1 :]) == ["record", "promote", "publish"]
    assert [report.set for report in receipt.validation.further] == ["varied"]
    (line,) = [line for line in caplog.messages if line.startswith("try_further: candidate on varied")]
    assert "20 held-out hosts: +3.0 [" in line
    assert line.endswith("points over wait, +2.0 over heuristic")
    harmful = _run(trial={"also_sets": ["varied", "compound"]})
    assert [one.name for one in harmful.decision.criteria if one.verdict is Verdict.FAIL] == [
        "mean_over_wait_on_compound"
    ]


def test_every_round_collects_on_the_further_sets_too(home: Path) -> None:
    further = {"set": "varied", "branch_hosts": 2, "round_branch_hosts": 2}
    receipt = _run(collect={"further": [further]})
    asked = calls(home)
    own = receipt.trainings[0].digest[:6]
    assert [line for line in asked if line.startswith("collect")] == [
        "collect 0 explore", "collect 0 explore varied", f"collect 1 {own}", f"collect 1 {own} varied"
    ]  # fmt: skip
    assert _stages(asked)[:4] == ["collect", "collect", "ingest", "curate"]
    assert [one.set for one in receipt.collections] == ["benchmark", "varied"] * 2


def test_after_a_kill_between_two_sets_the_first_is_not_grown_again(home: Path, flow_runs: FlowRuns) -> None:
    further = {"further": [{"set": "varied", "branch_hosts": 2, "round_branch_hosts": 2}]}
    flow_runs.kill_at("collect 2", collect=further)
    before = calls(home)
    receipt = _run(collect=further)
    assert receipt.is_resumed
    again = calls(home)[len(before) :]
    assert again[0] == before[-1] == "collect 0 explore varied"
    assert _stages(again)[1] == "ingest"
    assert [one.set for one in receipt.collections] == ["benchmark", "varied"] * 2


def test_after_a_kill_a_further_set_is_not_tried_twice(home: Path, flow_runs: FlowRuns) -> None:
    also = {"also_sets": ["varied", "compound"]}
    flow_runs.kill_at("further 2", trial=also)
    before = calls(home)
    receipt = _run(trial=also)
    assert receipt.is_resumed
    again = calls(home)[len(before) :]
    assert again[0] == before[-1]
    assert _stages(again)[:2] == ["further", "validate"]
    assert [report.set for report in receipt.validation.further] == ["varied", "compound"]


def test_after_a_kill_trials_with_another_plan_book_are_done_again(home: Path, flow_runs: FlowRuns) -> None:
    """They belong to another judgement; the stored ones would be no evidence for it."""
    also = {"also_sets": ["varied"]}
    flow_runs.kill_at("validate 1", trial=also)
    before = calls(home)
    write_book(load_plans("varied").model_copy(update={"blind": Plan()}), Home(home).plans / "varied.json")
    assert _run(trial=also).is_resumed
    again = calls(home)[len(before) :]
    assert (_stages(before)[-2:], _stages(again)[:2]) == (["further", "validate"], ["further", "validate"])


def test_a_stage_whose_files_were_damaged_is_done_again_with_all_that_follows(home: Path, flow_runs: FlowRuns) -> None:
    flow_runs.kill_at("validate 1")
    before = calls(home)
    for weights in (home / "data" / "policies").glob("*/weights.safetensors"):
        weights.write_bytes(b"\0" + weights.read_bytes()[1:])
    receipt = _run()
    again = calls(home)[len(before) :]
    assert _stages(again) == [
        "train",
        "collect",
        "ingest",
        "curate",
        "train",
        "validate",
        "record",
        "promote",
        "publish",
    ]
    assert receipt.decision.accepted


def test_stored_results_edited_between_a_kill_and_the_resumption_decide_nothing(
    home: Path, flow_runs: FlowRuns, prefect_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report and the decision as Prefect stored them, changed to that of a policy that passed."""
    monkeypatch.setenv(fake_stages.REJECT, "1")
    flow_runs.kill_at("record 1")
    before = calls(home)
    (opened,) = (json.loads(line) for line in (home / "data" / "ledger" / "runs.jsonl").read_text().splitlines())
    edited = [_accept(path) for path in (prefect_server.home / "storage").glob(f"*-{opened['token']}-*")]
    assert edited.count(True) == 2, "the stored report and the stored decision"

    receipt = _run()

    assert receipt.is_resumed
    assert not receipt.decision.accepted
    assert _stages(calls(home)[len(before) :]) == ["validate", "record"]


def _accept(path: Path) -> bool:
    """Make a stored report or decision say that the policy passed; whether it was one."""
    stored = json.loads(path.read_text())
    result = json.loads(stored.get("result", "null"))
    data = result.get("data") if isinstance(result, dict) else None
    if not isinstance(data, dict):
        return False
    if data["stage"] == "validate":
        for estimate in data["differences"].values():
            estimate.update(lower=5.0, mean=6.0, upper=7.0)
    elif data["stage"] == "gate":
        data["accepted"] = True
        for criterion in data["criteria"]:
            criterion["verdict"] = "PASS"
    else:
        return False
    path.write_text(json.dumps({**stored, "result": json.dumps(result)}))
    return True


def test_a_verdict_of_its_own_ends_a_run_and_is_not_tried_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(fake_stages.FAIL, "train 1")
    with pytest.raises(TrainingError, match="never commits"):
        _run()
    assert _stages(calls(home)) == FIRST_RUN[:4]
    monkeypatch.delenv(fake_stages.FAIL)
    assert not _run().is_resumed


def test_a_bug_ends_a_run_too_and_the_next_one_begins_anew_on_other_hosts(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(fake_stages.BREAK, "train 1")
    with pytest.raises(KeyError, match="a bug"):
        _run()
    monkeypatch.delenv(fake_stages.BREAK)
    begun = calls(home)

    receipt = _run()

    assert not receipt.is_resumed
    assert _stages(calls(home)[len(begun) :]) == WHOLE_RUN, "no receipt of the broken run is taken up"
    grown = [json.loads(path.read_text())["host_keys_digest"] for path in (home / RECEIPTS).glob("collect/*.json")]
    assert len(grown) == len(set(grown)) == 3


def test_what_is_transient_leaves_the_run_open(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.stages.train.task.retries", 0)
    monkeypatch.setenv(fake_stages.STUMBLE, "train 1")
    with pytest.raises(TransientError, match="busy"):
        _run()
    begun = calls(home)
    assert _run().is_resumed
    assert _stages(calls(home)[len(begun) :]) == WHOLE_RUN[3:]


def test_a_stage_that_reaches_its_limit_leaves_the_run_open_and_continues_with_a_higher_one(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect = fake_stages.collect_round

    def wait_in_the_round(container: Container, number: int, *others: Any) -> Any:
        deadline = time.monotonic() + 60 * number
        while time.monotonic() < deadline:  # Prefect interrupts no call here, because pytest's timeout has the alarm
            time.sleep(0.01)
        return collect(container, number, *others)

    with monkeypatch.context() as patch:
        patch.setattr("simic.app.training.collect_round", wait_in_the_round)
        with pytest.raises(ResourceLimitError, match=r"stage collect, number 1, .* Raise stages\.max_hours"):
            _run(**{"stages.max_hours": 0.002})
    begun = calls(home)
    assert _stages(begun) == FIRST_RUN[:4]
    assert _run(**{"stages.max_hours": 1.0}).is_resumed
    assert _stages(calls(home)[len(begun) :]) == WHOLE_RUN[4:]


def test_a_full_disk_leaves_the_run_open(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training that met one is not a bug: once there is room, the run goes on where it was."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "weights.safetensors")

    with monkeypatch.context() as patch:
        patch.setattr("simic.app.training.train_round", full)
        with pytest.raises(TransientError, match=r"No space left on device: weights\.safetensors; make space"):
            _run()
    begun = calls(home)
    assert _run().is_resumed
    assert _stages(calls(home)[len(begun) :]) == WHOLE_RUN[3:]


def test_what_is_transient_is_tried_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(fake_stages.STUMBLE, "ingest 1")
    monkeypatch.setattr("tasks.stages.ingest.task.retry_delay_seconds", [0.0, 0.0])
    receipt = _run()
    assert _stages(calls(home))[:4] == ["collect", "ingest", "ingest", "curate"]
    assert receipt.decision.accepted


def test_one_run_at_a_time_and_the_other_is_named(home: Path) -> None:
    with (
        exclusive(Home(home).locks / "run", "a run of the flow"),
        pytest.raises(TransientError, match=str(os.getpid())),
    ):
        _run()
    assert calls(home) == []
