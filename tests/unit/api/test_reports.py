"""Reports from elsewhere: what the writer takes lands without a quarantined line, what it refuses says why."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.builders.reports import episode, episodes, plain

import simic
from simic.api import reports as writing
from simic.app import data
from simic.app.container import Container
from simic.contracts.errors import ConfigError, ContractError
from simic.runtime.home import Home
from simic.runtime.settings import load_profile

INCOMING = Path("tamiyo.field_reports") / "incoming"


def shipped(reports: Iterable[simic.FieldReport]) -> list[simic.FieldReport]:
    """The same reports with blueprints that are installed here."""
    texts = (one.model_dump_json().replace('"mlp"', '"dense"').replace('"relu"', '"widen"') for one in reports)
    return [simic.FieldReport.model_validate_json(text) for text in texts]


@pytest.fixture
def places(home: Path) -> Home:
    made = Home(home)
    made.create()
    return made


def opened(places: Home) -> Container:
    """The home as the command line opens it."""
    return Container(places, load_profile("default"), 0)


def test_what_was_written_lands_and_is_curated_without_a_loss(places: Home) -> None:
    with simic.FieldReportWriter() as writer:
        for one in shipped(episodes(range(3))):
            writer.write(plain(one))
        for one in shipped(episode(7)):
            writer.write(one)
        assert not list((places.spool / INCOMING).glob("*")), "nothing is published before the block ends"
    assert len(list((places.spool / INCOMING).glob("*.jsonl.zst"))) == 1
    receipt = data.ingest(opened(places))
    assert (receipt.landed, receipt.quarantined) == (80, 0)
    assert data.curate(opened(places)).rejected == {}


def test_nothing_is_written_after_the_block(tmp_path: Path) -> None:
    with simic.FieldReportWriter(spool=tmp_path) as writer:
        pass
    with pytest.raises(ConfigError, match="block of this writer is over"):
        writer.write(shipped(episode())[0])


def test_a_spool_of_its_own_needs_no_home_and_can_be_moved_to_one(tmp_path: Path, home: Path) -> None:
    with simic.FieldReportWriter(spool=tmp_path / "out") as writer:
        for one in shipped(episode()):
            writer.write(one)
    assert not home.exists()
    places = Home(home)
    places.create()
    target = places.spool / INCOMING
    target.parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "out" / INCOMING).rename(target)
    assert data.ingest(opened(places)).landed == 20
    with pytest.raises(ConfigError, match="not both"):
        simic.FieldReportWriter(simic.Home(home), spool=tmp_path)


def test_many_reports_are_published_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "MOST_WAITING", 8)
    writer = simic.FieldReportWriter(spool=tmp_path)
    for one in shipped(episode()):
        writer.write(one)
    assert len(list((tmp_path / INCOMING).iterdir())) == 2
    writer.flush()
    writer.flush()
    assert len(list((tmp_path / INCOMING).iterdir())) == 3


def test_a_block_that_fails_publishes_what_was_accepted(places: Home) -> None:
    with pytest.raises(KeyError), simic.FieldReportWriter() as writer:
        writer.write(shipped(episode())[0])
        raise KeyError
    assert data.ingest(opened(places)).landed == 1


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: row.pop("host"), "contract: host: Field required"),
        (lambda row: row.update(notes="x"), "unknown_field: notes: Extra inputs"),
        (lambda row: row.update(run_id="7"), 'contract: run_id: String should match .*, found "7"; correct'),
        (
            lambda row: row.update(step=-1),
            "contract: step: Input should be greater than or equal to 0, found -1; correct",
        ),
        (lambda row: row["state"].update(epoch=True), r"contract: state\.epoch: .*integer"),
        (lambda row: row["available"].update(slot=[[True] * 9] * 6), "available.slot: expected 3 slots"),
        (
            lambda row: row["state"].update(validation_accuracy=0.77),
            "contradiction: metrics.validation_accuracy_before",
        ),
        (lambda row: row["log_prob_behaviour"].update(joint=-7.5), "is not the sum"),
        (lambda row: row.update(issued_at="1999-01-01T00:00:00Z"), "issued_at: issued_at: expected at the earliest"),
        (lambda row: row["available"]["blueprint"].append("ours"), r"unknown_blueprint: unknown blueprints \['ours'\]"),
        (lambda row: row["metrics"].update(rent_parameters=np.int64(3)), "JSON can express.*int64"),
        (lambda row: row["metrics"].update(validation_loss_after=float("nan")), "metrics.validation_loss_after"),
        (lambda row: row.update(mitigation=["x" * 64] * 9000), "expected at most 262144 bytes"),
    ],
)
def test_a_refusal_names_field_expectation_and_finding(tmp_path: Path, change: Change, message: str) -> None:
    writer, row = simic.FieldReportWriter(spool=tmp_path), plain(shipped(episode())[0])
    broken = json.loads(json.dumps(row))
    change(broken)
    with pytest.raises(ContractError, match=message):
        writer.write(broken)
    writer.write(row)
    writer.flush()
    assert len(list((tmp_path / INCOMING).iterdir())) == 1, "corrected, it is accepted"


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (3, 5, "step: expected 4, the next one, found 5"),
        (3, 3, "step: expected 4, the next one, found 3"),
        (19, 4, "step: expected none after step 19, which ended the episode, found 4"),
    ],
)
def test_steps_come_in_order_and_end_once(tmp_path: Path, first: int, second: int, message: str) -> None:
    writer, rows = simic.FieldReportWriter(spool=tmp_path), shipped(episode())
    writer.write(rows[first])
    with pytest.raises(ContractError, match=f"run {rows[0].run_id}: {message}"):
        writer.write(rows[second])


def test_what_curation_would_leave_out_the_episode_for_is_refused(tmp_path: Path) -> None:
    before, after = (plain(one) for one in shipped(episode())[3:5])
    for change, message in (
        ({"controller": "mine"}, "controller: expected explore, that of the episode's report before, found mine"),
        ({"host": {**after["host"], "key": 9}}, "host: expected that of the episode's report before, found .*9"),
        ({"state": {**after["state"], "epoch": 5}}, r"state\.epoch: expected 4, the end of the window before, found 5"),
        (
            {
                "state": {**after["state"], "validation_accuracy": 0.99, "validation_accuracy_history": []},
                "metrics": {**after["metrics"], "validation_accuracy_before": 0.99},
            },
            r"state\.validation_accuracy: expected .*, metrics\.validation_accuracy_after of the report before",
        ),
    ):
        writer = simic.FieldReportWriter(spool=tmp_path)
        writer.write(before)
        with pytest.raises(ContractError, match=message):
            writer.write({**after, **change})
        writer.write(after)


def test_a_write_that_the_bus_refuses_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "MOST_WAITING", 2)
    writer, rows = simic.FieldReportWriter(spool=tmp_path), shipped(episode())
    writer.write(rows[0])
    writer.write(rows[1])

    def busy(*_: object) -> None:
        raise simic.TransientError("busy")

    with monkeypatch.context() as patched:
        patched.setattr(writer._bus, "put", busy)
        with pytest.raises(simic.TransientError):
            writer.write(rows[2])
    writer.write(rows[2])
    writer.write(rows[3])


def test_only_the_last_ended_episodes_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "MOST_ENDED", 2)
    writer = simic.FieldReportWriter(spool=tmp_path)
    last = [shipped(episode(key))[-1] for key in range(3)]
    for one in last:
        writer.write(one)
    writer.write(last[0])
    with pytest.raises(ContractError, match="ended the episode"):
        writer.write(last[2])


def test_only_the_last_open_episodes_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "MOST_OPEN", 2)
    writer = simic.FieldReportWriter(spool=tmp_path)
    starts = [shipped(episode(key)) for key in range(3)]
    for one in starts:
        writer.write(one[0])
    with pytest.raises(ContractError, match="expected 1, the next one, found 5"):
        writer.write(starts[1][5])
    writer.write(starts[0][5])  # it was forgotten, as by a program that starts again


def test_a_blueprint_without_code_is_accepted_where_it_is_declared(tmp_path: Path) -> None:
    report = episode()[0].model_dump_json().replace('"mlp"', '"wider"').replace('"relu"', '"widen"')
    with pytest.raises(ContractError, match=r"unknown_blueprint: unknown blueprints \['wider'\]"):
        simic.FieldReportWriter(spool=tmp_path).write(json.loads(report))
    simic.FieldReportWriter(spool=tmp_path, blueprints=["wider"]).write(json.loads(report))
    with pytest.raises(ConfigError, match="blueprints: expected at most 128 names"):
        simic.FieldReportWriter(spool=tmp_path, blueprints=["Wider!"])


def test_a_folder_of_a_wrong_type_is_named() -> None:
    with pytest.raises(TypeError, match="spool: expected a folder as text or a path, found int"):
        simic.FieldReportWriter(spool=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="root: expected a folder as text or a path, found bytes"):
        simic.Home(b"home")  # type: ignore[arg-type]


def test_a_home_and_a_file_are_no_spools(places: Home, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is a home; give simic\.Home"):
        simic.FieldReportWriter(spool=places.root)
    file = tmp_path / "file"
    file.write_bytes(b"")
    with pytest.raises(ConfigError, match="expected a folder, found the file"):
        simic.FieldReportWriter(spool=file)
    assert not (places.root / "tamiyo.field_reports").exists()


@pytest.mark.parametrize("place", ["", "/incoming"])
def test_the_folder_of_a_topic_is_no_spool(place: str, tmp_path: Path) -> None:
    folder = Path(f"{tmp_path}/tamiyo.field_reports{place}")
    with pytest.raises(
        ConfigError, match=rf"^spool: expected a folder with a folder for each topic.*; give {tmp_path}$"
    ):
        simic.FieldReportWriter(spool=folder)
    assert not folder.exists()


@pytest.mark.parametrize("run_id", ["run-1", "AB" * 16, "0" * 33, None])
def test_only_the_id_of_an_episode_can_be_repeated(tmp_path: Path, run_id: Any) -> None:
    with simic.FieldReportWriter(spool=tmp_path) as writer:
        with pytest.raises(ContractError, match="run_id: expected 32 lower-case hexadecimal digits, found"):
            writer.repeat(run_id)
        writer.repeat("ab" * 16)
