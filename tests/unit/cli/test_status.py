"""``simic status``: which policy is live, on which rows it was trained, and how it did."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.builders.judged_candidates import SIGNER, judged, ticking, trials
from support.homes.mlflow_databases import furnished_home
from support.servers.forked_commands import run_command

from simic.app.container import Container
from simic.app.promotion import publish_champion
from simic.contracts.config import RunConfig
from simic.contracts.gate import ValidationReport
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
    for receipt in (evidence.snapshot, evidence.training, report, evidence.gate):
        container.receipts.save(receipt)
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
    assert answer() == {"schema_version": 1, "model": "tamiyo", "champion": None, "staged": None, "newest": None}
    assert line("champion").split(maxsplit=1)[1] == "none; `simic run` makes one"
    assert "--model karn" in simic("--model", "karn").stdout


def test_the_champion_is_shown_with_rows_evidence_and_publication(container: Container, place: Home) -> None:
    first = judged(place)
    record(container, first)
    found = answer()["champion"]
    digest = first.training.digest
    assert (found["version"]["digest"], found["operation"], found["published"]) == (digest, "promote", None)
    assert found["learned"] == {
        "snapshot": "d" * 64, "episodes": 100, "rows": 9, "reward_family": "basic", "sets": [], "seed": 0,
        "trainings": 1,
    }  # fmt: skip
    assert found["judged"]["over"] == {name: one.model_dump() for name, one in first.validation.differences.items()}
    assert line("over blind").split(maxsplit=2)[2] == "+3.0 [+2.0, +4.0]"
    assert "`simic publish`" in line("published")
    publish_champion(container)
    assert answer()["champion"]["published"]["digest"] == digest


def test_trainings_count_those_from_whose_weights_it_came(container: Container, place: Home) -> None:
    first = judged(place)
    record(container, first)
    second = judged(place, b"two", champion=first.training.digest)  # the builder starts it from the champion
    record(container, second)
    assert answer()["champion"]["learned"]["trainings"] == 2


def test_an_update_about_a_former_champion_is_no_publication(container: Container, place: Home) -> None:
    first = judged(place)
    record(container, first)
    publish_champion(container)
    record(container, judged(place, b"two", champion=first.training.digest))
    assert answer()["champion"]["published"] is None


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


def test_what_is_staged_waits_for_promote(container: Container, place: Home) -> None:
    evidence = judged(place)
    container.registry.stage(container.registry.record(evidence), evidence.validation, evidence.gate)
    assert answer()["staged"]["digest"] == evidence.training.digest
    assert "`simic promote`" in line("staged")


def test_missing_receipts_leave_the_champion_and_say_so(container: Container, place: Home) -> None:
    evidence = judged(place)
    container.registry.promote(container.registry.record(evidence), evidence.validation, evidence.gate)
    found = answer()["champion"]
    assert (found["judged"], found["learned"]["rows"]) == (None, None)
    assert "receipt is missing" in line("trained on") and "receipt of its validation is missing" in line("judged on")


def test_an_edited_journal_is_no_answer(container: Container, place: Home) -> None:
    record(container, judged(place))
    journal = place.ledger / "promotions.jsonl"
    journal.write_text(journal.read_text("utf-8").replace('"semantic_version":"1.0.0"', '"semantic_version":"9.0.0"'))
    done = simic("--json")
    assert (done.returncode, done.stdout) == (1, "")
    assert "IntegrityError" in done.stderr
