"""Where the command works: homes that are not there, oddly named, linked, or read-only; and who may make one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from support.faults.full_disks import read_only
from support.servers.commands import call_all
from support.servers.forked_commands import run_command

from simic.app.home_location import settle
from simic.cli.console import stderr, stdout
from simic.cli.main import app
from simic.runtime.clock import utc_now
from simic.runtime.home import Home

MAKES = {"ab", "init", "run", "collect", "ingest", "proof", "up", "ui"}
"""Verbs that bring something into a home, and make one where there is none."""
CHANGES = {
    "bus forward", "compare", "curate", "diff-policies", "down", "evaluate", "karn train", "keys reseal",
    "keys revoke", "keys rotate", "lake compact", "lake retain", "lake vacuum", "nightly", "promote", "publish",
    "rollback", "rollout abort", "rollout advance", "snapshots export", "snapshots pin", "snapshots prune",
    "snapshots unpin", "stage", "train", "trials", "validate",
}  # fmt: skip
"""Verbs that write to a home that is there."""
LOOKS = {
    "bus dead-letters", "bus status", "decide", "doctor", "export", "follow", "keys list", "lake status",
    "rollout status", "snapshots diff", "snapshots list", "snapshots verify", "sql", "status", "timeline", "verify",
    "watch",
}  # fmt: skip
"""Verbs that write nothing that anybody keeps."""
HOMELESS = {"check-reports", "plans headroom", "plans search", "schema"}
"""Verbs that need no home; `plans search` makes one only where it is to keep the book."""

ARGUMENTS = {
    "diff-policies": ["champion", "wait"],
    "evaluate": ["champion"],
    "decide": ["champion", "--state", "-"],
    "export": ["champion", "--torch-export", "{tmp}/tamiyo.pt2"],
    "follow": ["--into", "{tmp}/into", "--once"],
    "keys revoke": ["aaaaaaaaaaaaaaaa", "--reason", "x"],
    "rollback": ["--reason", "x"],
    "rollout abort": ["--reason", "x"],
    "snapshots diff": ["aaaa", "bbbb"],
    "snapshots export": ["aaaa", "--format", "pyg", "--out", "{tmp}/out"],
    "snapshots pin": ["aaaa"],
    "snapshots prune": ["--keep", "1"],
    "snapshots unpin": ["aaaa"],
    "sql": ["SELECT 1"],
    "timeline": ["--plot", "{tmp}/plot.png"],
    "compare": ["wait", "random", "--host-keys", "1,2"],
    "trials": ["--controllers", "wait", "--host-keys", "1"],
}


def _verbs(group: object, prefix: str = "") -> Iterator[str]:
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        if hasattr(command, "commands"):
            yield from _verbs(command, f"{prefix}{name} ")
        else:
            yield prefix + name


def _simic(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_command(*arguments, env={**os.environ, **environment})


def _call(verb: str, tmp_path: Path) -> list[str]:
    return [*verb.split(), *(text.format(tmp=tmp_path) for text in ARGUMENTS.get(verb, []))]


@pytest.mark.parametrize("verb", sorted(_verbs(typer.main.get_command(app))))
def test_the_help_of_every_verb_is_whole(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A bracket that is no markup must not end the text."""
    with pytest.raises(SystemExit) as ended:
        typer.main.get_command(app)([*verb.split(), "--help"], prog_name="simic")
    assert ended.value.code == 0
    assert "--help" in capsys.readouterr().out


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[object]:
    """The command in this process, many times faster; returns exit code and what stderr said."""
    from simic.cli.console import errors_become_exit_codes

    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    command = typer.main.get_command(app)

    def call(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended, errors_become_exit_codes():
            command(list(arguments), prog_name="simic")
        return int(ended.value.code or 0), capsys.readouterr().err

    yield call


def test_every_verb_says_what_it_does_with_a_home() -> None:
    known = [*MAKES, *CHANGES, *LOOKS, *HOMELESS]
    assert sorted(_verbs(typer.main.get_command(app))) == sorted(known), "sort a new verb into one of the four sets"


def test_a_verb_that_does_not_make_a_home_leaves_an_empty_directory_empty(tmp_path: Path, in_process) -> None:
    for verb in sorted(CHANGES | LOOKS):
        for place in (tmp_path / "empty", tmp_path / "absent" / "below"):
            (tmp_path / "empty").mkdir(exist_ok=True)
            code, said = in_process("--home", str(place), *_call(verb, tmp_path))
            expected = (
                f"no Simic home at {place}: `simic --home {place} init` creates one there; --home or SIMIC_HOME names "
                "another"
            )
            assert (code, expected in said) == (2, True), (verb, said)
            assert sorted(tmp_path.iterdir()) == [tmp_path / "empty"], verb
            assert list((tmp_path / "empty").iterdir()) == [], verb


def test_a_verb_without_a_home_needs_none_and_makes_none(tmp_path: Path, in_process) -> None:
    assert in_process("--home", str(tmp_path / "absent"), "schema")[0] == 0
    code, said = in_process("--home", str(tmp_path / "absent"), "plans", "search", "--set", "nobody")
    assert (code, "nobody" in said) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_the_home_is_named_before_or_after_every_verb_and_after_its_group(tmp_path: Path, in_process) -> None:
    for verb in sorted(CHANGES | LOOKS):
        call = _call(verb, tmp_path)
        group, own = verb.split()[:-1], call[len(verb.split()) - 1 :]
        named = ["--home", str(tmp_path / "mine")]
        for words in ([*named, *call], [*call, *named], [*group, *named, *own] if group else [*named, *call]):
            code, said = in_process(*words)
            assert (code, f"no Simic home at {tmp_path / 'mine'}:" in said) == (2, True), (words, said)


def test_a_home_may_be_named_from_the_folder_of_its_user(
    tmp_path: Path, in_process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell leaves the ~ of ``--home=~/mine`` as it is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert f"no Simic home at {tmp_path / 'mine'}:" in in_process("sql", "SELECT 1", "--home=~/mine")[1]
    assert in_process("sql", "SELECT 1", "--home=~nobody-of-this-name/mine")[0] == 2


def test_one_command_works_in_one_home(tmp_path: Path, in_process) -> None:
    twice = ("--home", str(tmp_path / "a"), "sql", "SELECT 1", "--home", str(tmp_path / "b"))
    code, said = in_process(*twice)
    assert (code, "one command works in one home" in said) == (2, True)
    assert in_process("sql", "SELECT 1", "--home", "")[0] == 2
    Home(tmp_path / "a").create()
    same = ("--home", str(tmp_path / "a"), "sql", "SELECT 1", "--home", str(tmp_path / "a"))
    assert in_process(*same)[0] == 0


@pytest.mark.parametrize("below", [False, True])
def test_a_home_that_is_a_file_or_below_one_is_a_usage_error(tmp_path: Path, in_process, below: bool) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    place = file / "home" if below else file
    for verb in ("sql", "doctor", "init", "collect", "ingest", "run", "up"):
        code, said = in_process("--home", str(place), *_call(verb, tmp_path))
        assert (code, str(place) in said) == (2, True), (verb, said)
    assert file.read_text() == "kept"


AS_NOBODY = """
import os, sys
from pathlib import Path
from simic.contracts.errors import ConfigError
from simic.runtime.home import Home
if os.getuid() == 0:
    os.setgroups([])
    os.setuid(65534)
for name in ("require", "create"):
    try:
        getattr(Home(Path(sys.argv[1])), name)()
    except ConfigError as error:
        print(error)
"""


def test_a_home_that_this_user_may_not_enter_is_a_usage_error(tmp_path: Path) -> None:
    home = Home(tmp_path / "locked" / "home")
    home.create()
    (tmp_path / "locked").chmod(0o000)
    try:
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, str(home.root)], capture_output=True, text=True, check=True
        )
    finally:
        (tmp_path / "locked").chmod(0o700)
    read, made = done.stdout.splitlines()
    assert read == f"cannot read the home {home.root}: Permission denied; check its permissions"
    assert made.startswith(f"cannot make a home at {home.root}: ")


def test_a_link_to_itself_and_a_name_that_is_no_text_are_usage_errors(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for place in (str(tmp_path / "loop"), f"{tmp_path}/\udcff", f"{tmp_path}/{'x' * 300}"):
        done = _simic("init", SIMIC_HOME=place)
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loop"]


def test_every_name_of_a_linked_home_is_the_same_home(tmp_path: Path, in_process) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    link.symlink_to(real)
    real.mkdir()
    Home(link).create()
    assert Home(link) == Home(real)
    assert Home(link).root == real
    assert in_process("--home", str(link), "lake", "compact")[0] == 0
    assert in_process("--home", str(real), "lake", "compact")[0] == 0
    assert len((real / "data" / "ledger" / "moves.jsonl").read_text().splitlines()) == 1


def test_a_home_made_by_an_earlier_version_is_a_home(tmp_path: Path, in_process) -> None:
    """It has no ledger of moves; the first verb that writes begins one."""
    Home(tmp_path / "old").create()
    assert not (tmp_path / "old" / "data" / "ledger" / "moves.jsonl").exists()
    assert in_process("--home", str(tmp_path / "old"), "sql", "SELECT 1")[0] == 0
    assert in_process("--home", str(tmp_path / "old"), "lake", "compact")[0] == 0
    assert (tmp_path / "old" / "data" / "ledger" / "moves.jsonl").exists()


def test_brackets_in_a_path_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    stdout().print("ready: /srv/[bold]a[/b]")
    stderr().print("no home at /srv/[x]")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("ready: /srv/[bold]a[/b]\n", "no home at /srv/[x]\n")


def test_python_m_simic_is_the_command(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "simic", "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "Usage: simic [OPTIONS] COMMAND" in done.stdout
    done = subprocess.run(
        [sys.executable, "-m", "simic", "sql", "SELECT 1", "--home", str(tmp_path / "no")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "no Simic home" in done.stderr) == (2, True)


def test_paragraphs_of_help_fill_the_width(in_process, capsys: pytest.CaptureFixture[str]) -> None:
    """A line end of the source is not one of the terminal."""
    command = typer.main.get_command(app)
    with pytest.raises(SystemExit):
        command(["lake", "compact", "--help"], prog_name="simic")
    assert "or two of a month that is over" in capsys.readouterr().out


def test_help_knows_every_exit_code(in_process, capsys: pytest.CaptureFixture[str]) -> None:
    command = typer.main.get_command(app)
    with pytest.raises(SystemExit):
        command(["--help"], prog_name="simic")
    said = " ".join(capsys.readouterr().out.split())
    for code in (
        "0 ok",
        "1 failed",
        "2 usage",
        "3 rejected",
        "4 transient",
        "5 doctor found problems",
        "130 interrupted",
    ):
        assert code in said


READS_ONLY = [
    ["sql", "SELECT count(*) AS n FROM steps", "--json"], ["snapshots", "list"], ["snapshots", "verify"], ["doctor"],
    ["doctor", "--deep"], ["lake", "status"], ["bus", "status"], ["bus", "dead-letters"], ["ui", "--json"],
    ["watch", "--controller", "wait", "-o", "world.horizon=4", "-o", "world.workers=1"],
]  # fmt: skip
WRITES = [
    ["ingest"], ["collect"], ["run"], ["init"], ["curate"], ["train"], ["promote"], ["doctor", "--repair"],
    ["lake", "compact"], ["trials", "--controllers", "wait"], ["up"], ["down"],
]  # fmt: skip


def test_in_a_read_only_home_looking_works_and_writing_is_a_clear_error(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.create()
    settle(home, utc_now())
    before = sorted((path, path.stat().st_mtime_ns) for path in home.root.rglob("*"))
    answers = call_all([*READS_ONLY, *WRITES], home.root, lambda command: read_only(command, home.root))
    for answer in answers[: len(READS_ONLY)]:
        assert answer.code == 0, answer
    for answer in answers[len(READS_ONLY) :]:
        assert (answer.code, f"the home {home.root} cannot be written" in answer.err) == (2, True), answer
    assert sorted((path, path.stat().st_mtime_ns) for path in home.root.rglob("*")) == before
