"""What stands in Prefect's storage decides neither which code runs nor which files are moved."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from support.fakes import stages as fake_stages
from support.fakes.stages import calls
from support.servers.flow_runs import FlowRuns

from flows.retrain import run
from simic.app.container import Container
from simic.contracts.errors import IntegrityError
from simic.contracts.results.gate import Verdict
from simic.contracts.results.receipts import Receipt, TrainingReport
from simic.runtime.home import resolve_home
from simic.runtime.settings import load_profile
from tasks.results import drop_foreign

Record = dict[str, Any]


@pytest.fixture(autouse=True)
def _stood_in(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_stages.install(monkeypatch, has_registry=False)


def _edit(storage: Path, home: Path, stage: str, edit: Callable[[Record], Record]) -> Path:
    """Edit the first stored result of a stage of the open run; returns where it lies."""
    (opened,) = (json.loads(line) for line in (home / "data" / "ledger" / "runs.jsonl").read_text().splitlines())
    path = min(storage.glob(f"{stage}-{opened['token']}-*"))
    path.write_text(json.dumps(edit(json.loads(path.read_text()))))
    return path


def _stages(lines: list[str]) -> list[str]:
    return [line.split()[0] for line in lines]


class _Code:
    """A pickle that makes a directory when it is loaded."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._trace),)


def _with_serializer(**options: Any) -> Callable[[Record], Record]:
    def edit(record: Record) -> Record:
        serializer = {**record["metadata"]["serializer"], **options}
        return {**record, "metadata": {**record["metadata"], "serializer": serializer}}

    return edit


def _with_result(**fields: Any) -> Callable[[Record], Record]:
    def edit(record: Record) -> Record:
        return {**record, "result": json.dumps({**json.loads(record["result"]), **fields})}

    return edit


@pytest.mark.usefixtures("prefect_server")
def test_a_stored_result_that_is_a_pickle_runs_no_code_and_the_stage_is_done_again(
    home: Path, flow_runs: FlowRuns, prefect_server: Any
) -> None:
    flow_runs.kill_at("record 1")
    before, trace = calls(home), home / "code-ran"
    blob = base64.encodebytes(cloudpickle.dumps(_Code(trace))).decode()
    serializer = {"type": "pickle", "picklelib": "cloudpickle"}
    _edit(
        prefect_server.home / "storage", home, "validate",
        lambda record: {"metadata": {**record["metadata"], "serializer": serializer}, "result": blob},
    )  # fmt: skip

    receipt = run(profile="quick", seed=0)

    assert not trace.exists()
    assert receipt.is_resumed
    assert _stages(calls(home)[len(before) :]) == ["validate", "record", "promote", "publish"]


@pytest.mark.usefixtures("prefect_server")
def test_paths_of_stored_results_edited_to_other_directories_move_none_of_them(
    home: Path, flow_runs: FlowRuns, prefect_server: Any
) -> None:
    flow_runs.kill_at("record 1")
    before, keys = calls(home), sorted(path.name for path in (home / "data" / "keys").iterdir())

    def elsewhere(record: Record) -> Record:
        result = json.loads(record["result"])
        return {**record, "result": json.dumps({**result, "data": {**result["data"], "path": "data/keys"}})}

    _edit(prefect_server.home / "storage", home, "train", elsewhere)
    receipt = run(profile="quick", seed=0)

    assert sorted(path.name for path in (home / "data" / "keys").iterdir()) == keys
    assert _stages(calls(home)[len(before) :])[0] == "train"
    assert receipt.decision.accepted


@pytest.mark.usefixtures("prefect_server")
def test_an_edited_trial_on_a_further_set_is_not_what_the_gate_reads(
    home: Path, flow_runs: FlowRuns, prefect_server: Any
) -> None:
    """The candidate does harm on ``compound``; the edited trial says that it does none."""
    trial = {"trial": {"also_sets": ["compound"]}}
    flow_runs.kill_at("validate 1", **trial)
    before = calls(home)

    def harmless(record: Record) -> Record:
        result = json.loads(record["result"])
        rows = result["data"]["controllers"]
        rows[-1]["over_wait"] = {**rows[-1]["over_wait"], "mean": 3.0, "lower": 2.0, "upper": 4.0}
        return {**record, "result": json.dumps(result)}

    _edit(prefect_server.home / "storage", home, "try_further", harmless)
    receipt = run(profile="quick", seed=0, overrides=trial)

    assert _stages(calls(home)[len(before) :])[:2] == ["further", "validate"]
    assert [line.name for line in receipt.decision.criteria if line.verdict is Verdict.FAIL] == [
        "mean_over_wait_on_compound"
    ]


@pytest.mark.usefixtures("prefect_server")
def test_a_planted_publication_does_not_stand_for_telling_production(
    home: Path, flow_runs: FlowRuns, prefect_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result of an earlier run under the name that the open run looks for, in the form Prefect writes."""
    flow_runs.kill_at("publish 1")
    storage, before = prefect_server.home / "storage", calls(home)
    (opened,) = (json.loads(line) for line in (home / "data" / "ledger" / "runs.jsonl").read_text().splitlines())
    looked_for: list[str] = []

    def plant(key: str, _kind: object) -> None:
        looked_for.append(key)
        if key.startswith("publish"):
            _plant_publication(storage, key, opened["token"])

    monkeypatch.setattr("tasks.stages.drop_foreign", plant)
    receipt = run(profile="quick", seed=0)

    assert looked_for[-1].startswith("publish")
    assert _stages(calls(home)[len(before) :]) == ["publish"]
    assert receipt.publication is not None
    assert receipt.publication.event_id == "0" * 32


def _plant_publication(storage: Path, key: str, token: str) -> None:
    container = Container(resolve_home(), load_profile("quick", {}), 0)
    version = json.loads(json.loads(min(storage.glob(f"promote-{token}-*")).read_text())["result"])["data"]
    lines = container.home.root / "calls.txt"
    kept = lines.read_text()
    from simic.contracts.results.receipts import PolicyVersion

    planted = fake_stages.publish(container, PolicyVersion.model_validate(version)).model_copy(
        update={"event_id": "f" * 32}
    )
    lines.write_text(kept)
    like = json.loads(min(storage.glob(f"promote-{token}-*")).read_text())
    name = "simic.contracts.results.receipts.PublicationReceipt"
    data = json.dumps({"__class__": name, "data": planted.model_dump(mode="json")})
    (storage / key).write_text(json.dumps({**like, "result": data}))


@pytest.mark.usefixtures("prefect_server")
def test_a_stage_done_again_whose_files_are_still_not_whole_fails_the_run(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(container: Container, receipt: Receipt) -> bool:
        return not isinstance(receipt, TrainingReport) and fake_stages.artifacts_are_intact(container, receipt)

    monkeypatch.setattr("tasks.stages.artifacts_are_intact", damaged)
    with pytest.raises(IntegrityError, match="stage train, number 0, of run"):
        run(profile="quick", seed=0)
    assert _stages(calls(home)) == ["collect", "ingest", "curate", "train", "train"]


@pytest.mark.usefixtures("prefect_server")
def test_only_a_receipt_in_the_form_that_prefect_writes_for_the_stage_is_left_to_be_read(
    home: Path, flow_runs: FlowRuns, prefect_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow_runs.kill_at("collect 2")
    storage = home / "storage"
    storage.mkdir()
    monkeypatch.setattr("tasks.results.storage_folder", lambda: storage)
    sound = _edit(prefect_server.home / "storage", home, "train", dict)
    record = json.loads(sound.read_text())
    data = json.loads(record["result"])["data"]
    nested = {"__class__": "antigravity.fly", "data": {}}
    edits: dict[str, Callable[[Record], Record] | str | bytes] = {
        "a pickle": _with_serializer(type="pickle"),
        "compressed": _with_serializer(type="compressed/pickle"),
        "another decoder": _with_serializer(object_decoder="os.system"),
        "another library": _with_serializer(jsonlib="cloudpickle"),
        "options of the decoder": _with_serializer(loads_kwargs={"parse_float": "x"}),
        "a storage block": lambda one: {**one, "metadata": {**one["metadata"], "storage_block_id": "0" * 32}},
        "the form of older versions": lambda one: {"data": one["result"], "serializer": {"type": "pickle"}},
        "a field more": lambda one: {**one, "serializer": {"type": "pickle"}},
        "another class": _with_result(__class__="antigravity.fly"),
        "another receipt": _with_result(__class__="simic.contracts.results.receipts.PublicationReceipt"),
        "an exception": _with_result(__exc_type__="builtins.SystemExit", message="x"),
        "a class within": _with_result(data={**data, "metrics": nested}),
        "no receipt": _with_result(data={}),
        "a result that is no text": lambda one: {**one, "result": json.loads(one["result"])},
        "one field twice": sound.read_text().replace('"metadata"', '"metadata": {"serializer": {}}, "metadata"', 1),
        "another encoding": sound.read_text().encode("utf-16"),
        "deeper than parsers go": "[" * 100_000,
        "nothing": "",
    }
    for name, edit in edits.items():
        content = json.dumps(edit(record)) if callable(edit) else edit
        (storage / "key").write_bytes(content if isinstance(content, bytes) else content.encode())
        drop_foreign("key", TrainingReport)
        assert not (storage / "key").exists(), name
    assert len(list((home / "damaged").iterdir())) == len(edits), "they are kept to be looked at"
    (storage / "key").write_bytes(sound.read_bytes())
    drop_foreign("key", TrainingReport)
    assert (storage / "key").exists()
