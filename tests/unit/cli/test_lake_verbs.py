"""The verbs of the lake and the doctor as a person calls them: JSON on stdout, exit codes as documented."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from support.builders.reports import episode, episodes
from support.homes.pipeline import drop, ingest_all, land

from simic.cli.console import errors_become_exit_codes
from simic.cli.doctor import FINDINGS
from simic.cli.main import app
from simic.lake.lake import open_lake
from simic.runtime.home import Home


@pytest.fixture
def landed(home: Path) -> Home:
    landed = Home(home)
    landed.create()
    land(landed, episodes(range(3)), batch_reports=20)
    return landed


class Shell:
    """Calls the command in this process, as ``main`` does."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def call(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended, errors_become_exit_codes():
            typer.main.get_command(app)(list(arguments), prog_name="simic")
        return int(ended.value.code or 0), *self._capsys.readouterr()

    def answer(self, *arguments: str, code: int = 0) -> Any:
        """What ``--json`` prints."""
        found, out, err = self.call(*arguments, "--json")
        assert found == code, err
        return json.loads(out)


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # the edge sets its own
    monkeypatch.setenv("COLUMNS", "200")
    return Shell(capsys)


def test_the_printed_example_of_a_report_lands_as_one_line(home: Path, shell: Shell) -> None:
    Home(home).create()
    code, example, _ = shell.call("schema", "FieldReport", "--example")
    assert code == 0
    drop(Home(home), "example", [json.loads(example)])
    receipt = shell.answer("ingest")
    assert (receipt["landed"], receipt["quarantined"]) == (1, 0), receipt["reasons"]


def test_a_life_of_a_lake(landed: Home, shell: Shell) -> None:
    assert shell.answer("lake", "status")["parts"] == 3
    merged = shell.answer("lake", "compact")
    assert (merged["merges"], merged["parts_after"], merged["rows"]) == (1, 1, 60)
    assert shell.answer("lake", "vacuum")["waiting"] == 3
    assert shell.answer("lake", "vacuum", "--grace-minutes", "0")["files"] == 3
    assert shell.answer("lake", "retain", "--max-bytes", "0")["rows"] == 60
    assert shell.answer("sql", "SELECT count(*) AS n FROM reports") == [{"n": 0}]
    status = shell.answer("lake", "status")
    assert (status["parts"], status["remembered_ids"], status["retired_files"]) == (0, 60, 1)


def test_a_curation_that_keeps_nothing_says_so_and_why(
    landed: Home, shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    """The snapshot is sealed, for all may have expired: exit code 0. Training refuses it with exit code 1."""
    code, out, _ = shell.call("curate", "-o", "curate.ttl_days=0.001")
    told = "curation kept 0 of 60 rows: 60 expired (older than curate.ttl_days). Training refuses snapshot"
    assert code == 0 and told in out and told in caplog.text
    code, _, err = shell.call("train", "-o", "curate.ttl_days=0.001")
    assert code == 1 and "min_experiences" in err
    assert shell.answer("curate", "-o", "curate.ttl_days=0.001")["rows_out"] == 0
    caplog.clear()
    code, out, _ = shell.call("curate")
    assert code == 0 and "kept 0" not in out + caplog.text


def test_a_curation_of_reports_that_were_all_refused_shows_where_they_are(home: Path, shell: Shell) -> None:
    Home(home).create()
    drop(Home(home), "refused", [b"{}"])
    assert shell.answer("ingest")["quarantined"] == 1
    code, _, message = shell.call("curate")
    assert code == 1 and "the lake holds no reports: expected at least one, found 0" in message
    _, _, query = message.partition("quarantine: simic sql ")
    assert len(shell.answer("sql", query.strip().strip('"'))) == 1


def test_retain_wants_a_bound(landed: Home, shell: Shell) -> None:
    code, _, message = shell.call("lake", "retain")
    assert code == 2 and "--max-age-days" in message
    assert shell.call("lake", "retain", "--max-age-days", "0")[0] == 2
    assert len(open_lake(landed).parts) == 3
    assert shell.answer("lake", "retain", "-o", "lake.max_bytes=0")["parts_left"] == 0


@pytest.mark.parametrize(
    ("verb", "flag", "value"),
    [
        ("retain", "--max-age-days", "nan"),
        ("retain", "--max-age-days", "inf"),
        ("retain", "--max-age-days", "1e9"),
        ("vacuum", "--grace-minutes", "inf"),
    ],
)
def test_flags_keep_the_bounds_of_the_settings(landed: Home, shell: Shell, verb: str, flag: str, value: str) -> None:
    code, _, message = shell.call("lake", verb, flag, value)
    assert code == 2 and f"{flag}: expected" in message
    assert len(open_lake(landed).parts) == 3


def test_the_doctor_ends_with_its_own_code(landed: Home, shell: Shell) -> None:
    assert {check["health"] for check in shell.answer("doctor")["checks"]} == {"healthy"}
    (landed.experience / open_lake(landed).parts[0].part).unlink()
    assert "damaged" in {check["health"] for check in shell.answer("doctor", code=FINDINGS)["checks"]}
    assert "repaired" in {check["health"] for check in shell.answer("doctor", "--repair")["checks"]}
    assert ingest_all(landed).landed == 20
    code, shown, _ = shell.call("doctor", "--deep")
    assert code == 0 and "3 parts as committed (size and SHA-256)" in shown


def test_help_tells_what_the_codes_mean(shell: Shell) -> None:
    assert f"{FINDINGS} doctor found problems" in shell.call("doctor", "--help")[1]
    assert "SIMIC_LAKE_URL" in shell.call("lake", "--help")[1]


def test_a_lake_is_where_its_url_says(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMIC_LAKE_URL", "/not/a/url")
    code, _, message = shell.call("lake", "status")
    assert code == 2 and "expected s3://bucket/prefix" in message
    code, _, message = shell.call("lake", "status", "-o", "lake.url=s3://bucket/lake?scheme=gopher")
    assert code == 2 and "scheme must be http or https" in message
    code, _, message = shell.call("lake", "status", "-o", "lake.url=s3://key:secret@bucket/lake")
    assert code == 2 and "must not hold credentials" in message


def test_configured_retention_runs_with_an_ingest(landed: Home, shell: Shell) -> None:
    drop(landed, "more", episode(7))
    receipt = shell.answer("ingest", "-o", "lake.max_bytes=0")
    assert (receipt["read"], receipt["ledger_rows"]) == (20, receipt["landed"])
    assert shell.answer("lake", "status")["remembered_ids"] == 60
