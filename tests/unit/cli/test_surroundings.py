"""Hostile surroundings of the real command: closed streams, readers that leave, few files, words that are no text."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.builders.reports import episodes
from support.homes.pipeline import land

from simic.cli.console import errors_become_exit_codes, parse_overrides
from simic.contracts.errors import ConfigError
from simic.runtime.home import Home

SIMIC = Path(sys.executable).with_name("simic")
MANY = "SELECT range, repeat('x', 50) AS text FROM range(30000)"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = Home(tmp_path_factory.mktemp("home"))
    place.create()
    return place.root


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with more parts than the files that a test lets it open."""
    root = tmp_path_factory.mktemp("parts")
    land(Home(root), episodes(range(4)), batch_reports=1)
    assert len(list(Home(root).experience.glob("*/*.parquet"))) == 80
    return root


def shell(home: Path, line: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """The line in a shell, whose ``$simic`` is the command; its exit code is that of the command, not of its reader."""
    variables = os.environ | {"SIMIC_HOME": str(home), "simic": str(SIMIC)} | environment
    command = ["bash", "-o", "pipefail", "-c", line]
    return subprocess.run(command, capture_output=True, check=False, env=variables, timeout=120)


def assert_sentence(done: subprocess.CompletedProcess[bytes], code: int, *texts: str) -> None:
    shown = " ".join(done.stderr.decode().split())
    assert done.returncode == code, shown
    assert all(text in shown for text in texts), shown
    for ugly in ("Traceback", 'File "', "Exception ignored", ".py:", "During handling", "terminate called"):
        assert ugly not in shown


@pytest.mark.parametrize(
    "line",
    [
        f'$simic sql --json "{MANY}" | head -1',
        f'$simic sql --limit 0 "{MANY}" | head -1',
        f'$simic sql --json "{MANY}" 2>&1 | head -1',
        f'$simic sql --json "{MANY}" 2>&- | head -1',
        "$simic schema --markdown | (exec <&-; sleep 2)",
        "$simic schema FieldReport | (exec <&-; sleep 2)",
        "$simic doctor 2>&1 | (exec <&-; sleep 2)",
        "$simic --help | (exec <&-; sleep 2)",
    ],
)
def test_a_reader_that_leaves_ends_a_verb_as_it_ends_others_of_a_pipe(home: Path, line: str) -> None:
    done = shell(home, line)
    assert_sentence(done, 141)
    assert done.stderr == b"" or "doctor" in line


def test_a_reader_of_remarks_that_leaves_ends_nothing(home: Path) -> None:
    done = shell(home, "$simic doctor --json 2> >(exec <&-; sleep 2) | tail -1")
    assert_sentence(done, 0)
    assert done.stdout == b"}\n"


@pytest.mark.parametrize("line", ["$simic sql 'SELECT 1'", "$simic doctor --json", "$simic --help", "$simic init"])
def test_a_closed_output_is_a_usage_error_before_anything_is_done(tmp_path: Path, line: str) -> None:
    done = shell(tmp_path, f"{line} >&-")
    assert_sentence(done, 2, "standard output is closed, so nothing was done")
    assert list(tmp_path.iterdir()) == []


def test_closed_remarks_and_input_change_nothing(home: Path) -> None:
    done = shell(home, "$simic sql --json 'SELECT 1 AS a' 2>&- <&-")
    assert (done.returncode, done.stdout) == (0, b'[\n  {"a": 1}\n]\n')
    assert shell(home, "$simic sql 'SELEC 1' 2>&- <&-").returncode == 2
    assert shell(home, "$simic sql 'SELECT 1' <&- >&- 2>&-").returncode == 2


def test_an_output_that_is_full_is_transient(home: Path) -> None:
    assert_sentence(shell(home, "$simic sql 'SELECT 1' >/dev/full"), 4, "No space left on device")


@pytest.mark.parametrize("verb", ["sql 'SELECT count(*) AS n FROM steps'", "curate"])
def test_more_parts_than_files_are_a_limit_that_is_named(parts: Path, verb: str) -> None:
    # DuckDB has at least 32 parts open before it reads one, and closes them as it goes: at 64 files it may succeed.
    done = shell(parts, f"ulimit -n 24; $simic {verb}")
    assert_sentence(done, 1, "ResourceLimitError", "the 24 files", ".parquet", "`ulimit -n`", "`simic lake compact`")


def test_sixty_four_files_are_enough_to_examine_parts_and_to_merge_them(parts: Path, tmp_path: Path) -> None:
    copy = tmp_path / "home"
    shutil.copytree(parts, copy)
    assert_sentence(shell(copy, "ulimit -n 64; $simic doctor --deep && $simic lake compact"), 0)
    assert_sentence(shell(copy, "ulimit -n 64; $simic sql 'SELECT count(*) AS n FROM steps' && $simic curate"), 0)


def test_too_few_files_are_a_limit_that_is_named(home: Path) -> None:
    assert_sentence(shell(home, "ulimit -n 8; $simic sql 'SELECT 1'"), 1, "ResourceLimitError", "8 files", "ulimit -n")


def test_a_machine_without_memory_is_a_limit_that_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with pytest.raises(SystemExit) as ended, errors_become_exit_codes():
        bytearray(2**60)
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith("ResourceLimitError: this process reached its memory limit")


@pytest.mark.parametrize(
    ("line", "texts"),
    [
        ("$simic sql $'SELECT \"\\xff\"'", ("argument 2 ", "not valid UTF-8 at character 9")),
        ("$simic --home $'h\\xff' init", ("argument 2 ", "not valid UTF-8 at character 2")),
        ("$simic $'\\xff'", ("argument 1 ", "not valid UTF-8 at character 1")),
        ("$simic train -o 'train.start=\"a\\u0000b\"'", ("train.start", "NUL")),
        ("SIMIC_HOME=$'/nowhere/\\xff' $simic init", ("SIMIC_HOME", "not UTF-8")),
    ],
)
def test_what_is_no_text_is_a_usage_error(tmp_path: Path, line: str, texts: tuple[str, ...]) -> None:
    assert_sentence(shell(tmp_path, line), 2, "ConfigError", *texts)
    assert list(tmp_path.iterdir()) == []


def test_a_nul_in_any_part_of_a_value_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"lake\.url.*NUL"):
        parse_overrides(['lake.url=["a", "s3://\\u0000"]'])


@pytest.mark.parametrize(
    "variables",
    [
        {"TMPDIR": "/proc", "TERM": "dumb"}, {"LC_ALL": "C", "COLUMNS": "1"},
        {"LC_ALL": "POSIX", "PYTHONIOENCODING": "ascii", "TMPDIR": "/nowhere"},
    ],
    ids=str,
)  # fmt: skip
def test_odd_surroundings_change_no_answer(home: Path, variables: dict[str, str]) -> None:
    line = "unset HOME; $simic sql --json \"SELECT 'ü' AS a, 1 AS n\" && $simic sql 'SELECT 1 AS n'"
    done = shell(home, line, **variables)
    assert_sentence(done, 0)
    assert b'{"a": "\\u00fc", "n": 1}' in done.stdout
