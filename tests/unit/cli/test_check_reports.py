"""`simic check-reports` as a lab with its own framework uses it: a file in, every fault out, a code for scripts."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import typer
import zstandard
from support.builders.reports import episode, write_jsonl

from simic.cli import check_reports
from simic.cli.console import errors_become_exit_codes
from simic.cli.main import app
from simic.contracts.names import FIELD_REPORTS


class Done(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


Simic = Callable[..., Done]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Simic:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    command = typer.main.get_command(app)

    def run(*arguments: str) -> Done:
        with pytest.raises(SystemExit) as ended, errors_become_exit_codes():
            command(["check-reports", *arguments], prog_name="simic")
        return Done(int(ended.value.code or 0), *capsys.readouterr())

    return run


def good(horizon: int = 20, key: int = 0) -> list[bytes]:
    reports = episode(key, horizon=horizon, script={})
    return [one.model_dump_json().replace('"mlp"', '"dense"').replace('"relu"', '"widen"').encode() for one in reports]


def test_a_good_file_ends_with_0_and_its_counts(tmp_path: Path, call: Simic) -> None:
    done = call(str(write_jsonl(tmp_path / "a.jsonl", good())))
    assert done == (0, "reports: 20 accepted, 0 duplicate, 0 refused\nepisodes: 1 complete, 0 incomplete\n", "")


def test_a_bad_line_is_explained_and_ends_with_1(tmp_path: Path, call: Simic) -> None:
    rows = good()
    rows[4] = rows[4].replace(b'"epoch":4', b'"epoch":-4', 1)
    path = str(write_jsonl(tmp_path / "a.jsonl", rows))
    done = call(path)
    assert done.code == 1
    run_id = json.loads(rows[0])["run_id"]
    assert done.out.splitlines()[0] == (
        f"line 5, episode {run_id}, step 4: contract: state.epoch: Input should be greater than or equal to 0, found "
        "-4; correct the field; `simic schema FieldReport` prints its rule"
    )
    assert "curation leaves out an incomplete episode" in done.out
    refused, summary = (json.loads(line) for line in call(path, "--json").out.splitlines())
    assert (refused["event"], refused["line"], refused["step"], refused["found"]) == ("refused", 5, 4, "-4")
    assert (summary["event"], summary["accepted"], summary["reasons"]) == ("summary", 19, {"contract": 1})
    assert (summary["complete_episodes"], summary["incomplete_episodes"]) == (0, 1)


def test_an_episode_without_its_end_is_named(tmp_path: Path, call: Simic) -> None:
    rows = good()
    path, run_id = str(write_jsonl(tmp_path / "a.jsonl", rows[:-2])), json.loads(rows[0])["run_id"]
    done = call(path)
    assert (done.code, done.out.splitlines()[2]) == (0, f"no report ends episode {run_id} (last step 17)")
    (summary,) = (json.loads(line) for line in call(path, "--json").out.splitlines())
    assert summary["without_end"] == [{"run_id": run_id, "last_step": 17}]
    done = call(str(write_jsonl(tmp_path / "b.jsonl", [*rows[:-2], *good(key=1)[5:]])))
    assert "0 complete, 2 incomplete" in done.out
    assert done.out.splitlines()[2] == f"no report ends episode {run_id} (last step 17)"


def test_of_several_faults_the_first_shows_what_was_found(tmp_path: Path, call: Simic) -> None:
    rows = good()
    rows[4] = rows[4].replace(b'"epoch":4', b'"epoch":-4', 1).replace(b'"step":4', b'"step":-5', 1)
    words = call(str(write_jsonl(tmp_path / "a.jsonl", rows))).out.splitlines()[0]
    assert "step: Input should be greater than or equal to 0, found -5; state.epoch: Input should be" in words


def test_standard_input_and_compressed_files_are_read(
    tmp_path: Path, call: Simic, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = b"\n".join(good())
    (tmp_path / "a.jsonl.zst").write_bytes(zstandard.compress(text))
    assert call(str(tmp_path / "a.jsonl.zst")).code == 0
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert "20 accepted" in call("-").out


def test_files_of_one_episode_may_come_in_any_order(
    tmp_path: Path, call: Simic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Grower writes a file per epoch, under names without an order; a copy may lose the times of the files."""
    rows = good(horizon=8)
    settings = ("-o", "world.horizon=8")
    waiting = tmp_path / "reports" / "tamiyo.field_reports" / "incoming"
    waiting.mkdir(parents=True)
    for step in (5, 2, 7, 0, 4, 1, 6, 3):
        (waiting / f"reports-{step * 5 % 8}.jsonl.zst").write_bytes(zstandard.compress(rows[step]))
    (waiting / ".unfinished.jsonl").write_bytes(b"x")
    (waiting / "notes.txt").write_bytes(b"x")
    whole = "reports: 8 accepted, 0 duplicate, 0 refused\nepisodes: 1 complete, 0 incomplete\n"
    assert call(str(tmp_path / "reports"), *settings) == (0, whole, ""), "a spool"
    assert call(str(waiting), *settings) == (0, whole, ""), "a folder"
    landed = waiting.rename(waiting.with_name("done"))
    waiting.mkdir()
    refusal = call(str(tmp_path / "reports"), *settings)
    assert refusal.code == 2
    assert f"lie in {landed}; name that folder" in refusal.err
    assert call(str(landed), *settings) == (0, whole, ""), "what an ingest has read"
    first = str(write_jsonl(tmp_path / "b.jsonl", rows[4:]))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\n".join(rows[:4]))))
    assert call(first, "-", *settings) == (0, whole, ""), "a file and standard input"
    write_jsonl(tmp_path / "c.jsonl", [rows[0], rows[3].replace(b'"epoch":3', b'"epoch":2', 1), b"x", rows[2]])
    done = call(first, str(tmp_path / "c.jsonl"), *settings, "--json")
    *refused, summary = (json.loads(line) for line in done.out.splitlines())
    assert [(one["file"], one["line"], one["reason"]) for one in refused] == [
        (str(tmp_path / "c.jsonl"), 2, "contradiction"), (str(tmp_path / "c.jsonl"), 3, "malformed_json"),
    ]  # fmt: skip
    assert (done.code, summary["complete_episodes"], summary["incomplete_episodes"]) == (1, 0, 1)


def test_settings_are_those_of_an_ingest(tmp_path: Path, call: Simic) -> None:
    path = str(write_jsonl(tmp_path / "a.jsonl", [row.replace(b'"dense"', b'"wider"') for row in good(horizon=6)]))
    done = call(path)
    assert (done.code, "unknown_blueprint" in done.out) == (1, True)
    done = call(path, "-o", 'ingest.declared_blueprints=["wider"]')
    assert done.code == 0
    assert "found 6: simic curate -o 'curate.also_horizons=[6]'" in done.out
    declared = ["-o", 'ingest.declared_blueprints=["wider"]', "-o", "world.horizon=6"]
    assert "curation" not in call(path, *declared).out
    assert "found 6: simic curate --profile quick -o" in call(path, *declared[:2], "--profile", "quick").out
    assert call(path, "-o", 'ingest.declared_blueprints=["Wider"]').code == 2


@pytest.mark.parametrize(
    ("filling", "setting", "message"),
    [
        (b"\n" * (2 << 20), "ingest.max_file_mb=1", "expected at most 100000 lines in a file of ingest.max_file_mb"),
        (b"x" * (2 << 20), "ingest.max_file_mb=1", "expected at most 1048576 bytes unpacked (ingest.max_file_mb)"),
        (b"", "ingest.max_file_s=1e-9", "expected to be done within 1e-09 s (ingest.max_file_s)"),
    ],
)
def test_a_file_that_an_ingest_gives_up_on_is_refused(
    filling: bytes, setting: str, message: str, tmp_path: Path, call: Simic, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = b"\n".join([*good(), filling])
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstandard.compress(text))
    done = call(str(path), "-o", setting)
    last = [line for line in done.out.splitlines() if line.startswith("line ")][-1]
    assert (done.code, f"given_up: the source exceeds a limit of the reader: {message}" in last) == (1, True), done
    assert last.endswith("; split the file at ends of lines, or raise the setting that the message names")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert "given_up" not in call("-", "-o", setting).out, "standard input has no limit"


def test_a_file_too_large_on_disk_is_refused_before_it_is_read(tmp_path: Path, call: Simic) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", good())
    os.truncate(path, 1 << 40)
    done = call(str(path), "-o", "ingest.max_file_mb=1")
    assert (done.code, f"(ingest.max_file_mb), found {1 << 40}" in done.out) == (1, True)
    assert "0 accepted" in done.out


def test_of_a_spool_both_folders_are_read_from_which_the_next_ingest_delivers(tmp_path: Path, call: Simic) -> None:
    topic = tmp_path / FIELD_REPORTS
    for folder in ("claimed", "incoming", "done"):
        (topic / folder).mkdir(parents=True)
    write_jsonl(topic / "done" / "landed.jsonl", good())
    done = call(str(tmp_path))
    assert (done.code, f"in {topic / 'claimed'} or {topic / 'incoming'}, found none" in done.err) == (2, True)
    write_jsonl(topic / "claimed" / "b.jsonl", good())
    done = call(str(tmp_path))
    assert (done.code, "20 accepted" in done.out) == (0, True), done.err
    write_jsonl(topic / "incoming" / "a.jsonl", [b"{broken"])
    done = call(str(tmp_path))
    assert (done.code, "20 accepted" in done.out, "a.jsonl, line 1: malformed_json" in done.out) == (1, True, True)
    (topic / "incoming" / "a.jsonl").unlink()
    (topic / "incoming").rmdir()
    assert call(str(tmp_path)).code == 0


def test_what_cannot_be_read_or_holds_nothing_is_no_success(tmp_path: Path, call: Simic) -> None:
    for name in (str(tmp_path / "absent"), str(tmp_path), "a\0b", "/proc/self/mem"):
        done = call(name)
        assert (done.code, "cannot read" in done.err) == (2, True), name
        assert "FILE" not in done.err
    assert "name a file of reports, a folder of them, or - for" in call(str(tmp_path / "absent.jsonl")).err
    (tmp_path / "empty").write_bytes(b"\n\n")
    done = call(str(tmp_path / "empty"))
    assert (done.code, "expected at least one report" in done.out) == (1, True)
    assert "rename" in done.out
    (tmp_path / "wide.jsonl").write_text(json.dumps(json.loads(good()[0]), indent=2))
    done = call(str(tmp_path / "wide.jsonl"))
    assert (done.code, done.out.count("write each report on a line of its own")) == (1, 1)
    assert len(done.out.splitlines()) < 6, done.out
    (tmp_path / "faulty.jsonl").write_text('{"schema_version": 1}\n{"schema_version": 2}\n{broken')
    done = call(str(tmp_path / "faulty.jsonl"))
    assert (done.code, "write each report on a line of its own" in done.out) == (1, False)


@pytest.mark.parametrize(
    ("pack", "found"),
    [
        (gzip.compress, "gzip: decompress it with gunzip"),
        (zstandard.compress, "Zstandard: name it *.jsonl.zst"),
        (lambda text: text.decode().encode("utf-16"), "UTF-16: write it in UTF-8"),
        (lambda text: b"\xef\xbb\xbf" + text, "a byte order mark: write UTF-8 without one"),
    ],
)
def test_a_file_in_another_format_is_named_and_not_read(
    pack: Callable[[bytes], bytes], found: str, tmp_path: Path, call: Simic
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(pack(b"\n".join(good())))
    done = call(str(path))
    assert (done.code, done.out) == (2, "")
    assert f"a.jsonl: expected lines of JSON in UTF-8, found {found}" in done.err


def test_a_long_file_shows_its_progress_on_stderr(tmp_path: Path, call: Simic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_reports, "LEAST_BYTES", 1000)
    path = str(write_jsonl(tmp_path / "a.jsonl", [*good(), b"x"]))
    monkeypatch.setattr(check_reports, "_MEGABYTE", 1000)
    done = call(path, "--json")
    size = Path(path).stat().st_size // 1000
    assert done.err.splitlines()[0] == f"check, MB: 0/{size}"
    assert f"{size}/{size} in" in done.err
    assert len(done.out.splitlines()) == 2, "nothing but JSON on stdout"
