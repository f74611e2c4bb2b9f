"""``simic status``: which policy is live, on which rows it was trained, and how it did."""

from __future__ import annotations

import io
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.builders.judged_candidates import NOW, SIGNER, estimate, judged, receipt, ticking, trials
from support.homes.mlflow_databases import furnished_home
from support.servers.forked_commands import run_command

from simic.app.container import Container
from simic.app.promotion import publish_champion
from simic.cli.status import _table
from simic.contracts.policy_update import ValidationSummary
from simic.contracts.results.gate import ValidationReport
from simic.contracts.results.receipts import PolicyVersion
from simic.contracts.results.status import ChampionStatus, GainOn, HomeStatus, JudgedOn, TrainingRows
from simic.contracts.settings.run import RunConfig
from simic.registry.mlflow_run import CandidateRecord
from simic.runtime.home import Home


@pytest.fixture
def place(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Home:
    home = furnished_home(tmp_path / "place", tmp_path_factory)
    monkeypatch.setenv("SIMIC_HOME", str(home.root))
    return home


@pytest.fixture
def container(place: Home) -> Container:
    found = Container(place, RunConfig(), 0, clock=ticking())
    found.__dict__["signer"] = SIGNER
    return found


def record(
    container: Container, evidence: CandidateRecord, change: Callable[[ValidationReport], Any] | None = None
) -> None:
    """Store receipts and registry entries of a candidate as the verbs do; promote it if it was accepted."""
    report = evidence.validation if change is None else change(evidence.validation)
    for made in (evidence.snapshot, evidence.training, report, evidence.gate):
        container.receipts.save(made)
    version = container.registry.record(evidence)
    if evidence.gate.accepted:
        container.registry.promote(version, evidence.validation, evidence.gate)


def simic(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command("status", *arguments)


def answer(*arguments: str) -> Any:
    done = simic(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def line(name: str) -> str:
    """The line of the table that begins with ``name``."""
    done = simic()
    assert done.returncode == 0, done.stderr
    (found,) = [text for text in done.stdout.splitlines() if text.strip().startswith(name)]
    return found.rstrip()


@pytest.mark.usefixtures("place")
def test_a_home_without_a_champion_says_what_makes_one() -> None:
    nothing = {"schema_version": 1, "model": "tamiyo", "champion": None, "staged": None, "newest": None}
    assert answer() == {**nothing, "not_shown": []}
    assert line("champion").split(maxsplit=1)[1] == "none; `simic run` makes one"
    assert "--model karn" in simic("--model", "karn").stdout


def test_the_champion_is_shown_with_rows_evidence_and_publication(container: Container, place: Home) -> None:
    first = judged(place)
    record(container, first)
    found, digest = answer(), first.training.digest
    champion = found["champion"]
    assert (champion["version"]["digest"], champion["operation"], champion["published"]) == (digest, "promote", None)
    assert champion["learned"] == {
        "snapshot": "d" * 64, "rows": 9, "reward_family": "basic", "episodes": 100, "sets": [], "start": None,
        "seed": 0,
    }  # fmt: skip
    expected = {name: one.model_dump() for name, one in first.validation.differences.items()}
    assert champion["judged"]["gain"]["over"] == expected
    assert champion["judged"]["summary"]["return_over_wait"] == 6.0
    assert found["not_shown"] == []
    assert line("over blind").split(maxsplit=2)[2] == "+3.0 [+2.0, +4.0]"
    assert "`simic publish`" in line("published")
    publish_champion(container)
    assert answer()["champion"]["published"]["digest"] == digest
    (update,) = (place.outbox / "done").glob("*.json")
    update.write_bytes(update.read_bytes()[:-20])
    found = answer()
    assert found["champion"]["published"] is None
    assert str(update) in found["not_shown"][-1]


def test_a_change_of_champion_names_its_start_and_is_not_published_yet(container: Container, place: Home) -> None:
    first = judged(place)
    record(container, first)
    publish_champion(container)
    record(container, judged(place, b"two", champion=first.training.digest))  # the builder starts it from the champion
    found = answer()["champion"]
    assert (found["learned"]["start"], found["published"]) == (first.training.digest, None)


def test_a_rollback_shows_the_former_champion_with_its_own_evidence(container: Container, place: Home) -> None:
    first = judged(place)
    record(container, first)
    record(container, judged(place, b"two", champion=first.training.digest), lambda report: gaining(report, 9.0))
    again = gaining(first.validation, 7.0).model_copy(update={"ordinal": 2})
    container.receipts.save(again)  # a later judgement of the same policy
    container.registry.rollback("worse in production")
    found = answer()["champion"]
    assert (found["version"]["digest"], found["operation"]) == (first.training.digest, "rollback")
    assert found["reason"] == "worse in production"
    assert found["judged"]["gain"]["over"]["blind"]["mean"] == 3.0
    assert "restored by a rollback" in line("champion")


def test_a_waiting_update_about_another_version_may_have_been_heard(container: Container, place: Home) -> None:
    first = judged(place)
    record(container, first)
    publish_champion(container)
    known = set((place.outbox / "done").glob("*.json"))
    record(container, judged(place, b"two", champion=first.training.digest))
    publish_champion(container)
    (second,) = set((place.outbox / "done").glob("*.json")) - known
    second.rename(place.outbox / "pending" / second.name)  # as if the process was killed before it marked the update
    container.registry.rollback("worse in production")
    assert answer()["champion"]["published"] is None


def gaining(report: ValidationReport, mean: float) -> ValidationReport:
    return report.model_copy(update={"differences": {"wait": estimate(mean), "blind": estimate(mean)}})


def test_further_sets_are_shown_with_their_gain(container: Container, place: Home) -> None:
    def try_further(report: ValidationReport) -> ValidationReport:
        return report.model_copy(update={"further": [trials().model_copy(update={"set": "varied"})]})

    record(container, judged(place), try_further)
    assert line("varied").split(maxsplit=1)[1] == "+4.0 [+3.0, +5.0] over wait on 2 held-out hosts"


def test_a_rejection_names_what_was_not_met_and_the_champion_stays(container: Container, place: Home) -> None:
    first = judged(place)
    record(container, first)
    rejected = judged(place, b"two", accepted=False, champion=first.training.digest)
    record(container, rejected)
    found = answer()
    assert found["champion"]["version"]["digest"] == first.training.digest
    assert found["newest"]["policy"] == rejected.training.digest
    assert found["newest"]["unmet"] == ["return_over_wait is -5, needs > 0"]
    assert "rejected: return_over_wait is -5, needs > 0" in line("newest decision")


def test_what_is_staged_waits_to_be_promoted(container: Container, place: Home) -> None:
    evidence = judged(place)
    container.registry.stage(container.registry.record(evidence), evidence.validation, evidence.gate)
    assert answer()["staged"]["digest"] == evidence.training.digest
    assert "waits to be promoted" in line("staged")


def test_without_receipts_the_journal_still_says_what_it_was_accepted_for(container: Container, place: Home) -> None:
    evidence = judged(place)
    container.registry.promote(container.registry.record(evidence), evidence.validation, evidence.gate)
    found = answer()
    champion = found["champion"]
    assert (champion["judged"]["gain"], champion["learned"]["rows"]) == (None, None)
    assert [text.partition(" receipt")[0] for text in found["not_shown"]] == ["the train", "the curate", "the validate"]
    assert line("over wait").split(maxsplit=2)[2].startswith("+6.0, lower bound +5.0")


@pytest.mark.parametrize("stage", ["train", "validate"])
def test_an_edited_receipt_is_named_and_not_shown(container: Container, place: Home, stage: str) -> None:
    record(container, judged(place))
    (path,) = (place.receipts / stage).glob("*.json")
    receipt = json.loads(path.read_text())
    path.write_text(json.dumps(receipt | {"seed": 7}))
    found = answer()
    (remark,) = found["not_shown"]
    assert remark.startswith(f"the {stage} receipt") and "not trusted" in remark
    champion = found["champion"]
    assert (champion["judged"]["gain"] if stage == "validate" else champion["learned"]["episodes"]) is None


def test_a_torn_receipt_is_named_and_another_policys_is_no_matter(container: Container, place: Home) -> None:
    record(container, judged(place))
    (place.receipts / "train" / "20300101T000000000000Z-0123456789ab.json").write_text("{")
    assert answer()["not_shown"] == []
    (path,) = (place.receipts / "validate").glob("*.json")
    path.write_bytes(path.read_bytes()[:100])
    (remark,) = answer()["not_shown"]
    assert remark.startswith("the validate receipt") and "no readable one" in remark


@pytest.mark.parametrize("edit", [{"accepted": True}, {"model": "karn"}, {"criteria": []}])
def test_an_edited_decision_is_not_shown_as_the_newest(
    container: Container, place: Home, edit: dict[str, object]
) -> None:
    first = judged(place)
    record(container, first)
    record(container, judged(place, b"two", accepted=False, champion=first.training.digest))
    ledger = place.ledger / "gates.jsonl"
    kept, last = ledger.read_text("utf-8").splitlines()
    ledger.write_text(f"{kept}\n{json.dumps(json.loads(last) | edit)}\n")
    found = answer()
    assert found["newest"] is None
    assert found["not_shown"][-1].startswith("the newest decision of the gate")
    assert found["champion"]["version"]["digest"] == first.training.digest


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("promotions.jsonl", '"semantic_version":"1.0.0"', '"semantic_version":"9.0.0"'),
        ("gates.jsonl", '"model":"tamiyo"', '"model":"karn"'),
        ("gates.jsonl", '"value":5.0', '"value":50.0'),
    ],
)
def test_no_champion_is_shown_without_its_journal_and_decision(
    container: Container, place: Home, name: str, before: str, after: str
) -> None:
    record(container, judged(place))
    path = place.ledger / name
    text = path.read_text("utf-8")
    assert before in text
    path.write_text(text.replace(before, after))
    done = simic("--json")
    assert (done.returncode, done.stdout) == (1, "")
    assert "IntegrityError" in done.stderr


def test_a_judgement_of_karn_from_a_log_says_so_and_escapes_what_it_shows() -> None:
    version = PolicyVersion(
        **receipt(), name="karn", number=2, semantic_version="1.0.1", digest="1" * 64, reference="models:/karn/2",
        aliases=[], previous=1, snapshot_digest="2" * 64, gate_digest="3" * 64, mlflow_run_id="run",
    )  # fmt: skip
    summary = ValidationSummary(
        episodes=60,
        return_over_wait=2.0,
        lower_bound=1.0,
        confidence=0.95,
        gate_digest="3" * 64,
        consulted_by="4" * 64,
        evidence="reports",
    )
    gain = GainOn(set="a\x1b[31m", hosts=60, over={"wait": estimate(2.0)})
    champion = ChampionStatus(
        version=version, operation="promote", since=NOW, reason="accepted", published=None,
        learned=TrainingRows(snapshot="2" * 64, rows=9, reward_family="basic", sets=["varied"], seed=3),
        judged=JudgedOn(summary=summary, ordinal=4, gain=gain, further=[gain]),
    )  # fmt: skip
    found = HomeStatus(model="karn", champion=champion, staged=None, newest=None, not_shown=[])
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(_table(found))
    text = console.export_text()
    assert "estimates from a log, no trial, 60 held-out hosts" in text
    assert "policy 444444444444, in all rows" in text
    assert "`simic publish --model karn`" in text
    assert "reward basic; sets varied" in text
    assert "\x1b" not in text and "\\x1b[31m" in text
