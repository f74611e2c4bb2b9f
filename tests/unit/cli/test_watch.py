"""`simic watch` and `simic collect --plot` as a person meets them."""

from __future__ import annotations

import json
import os
import pty
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import typer

from simic.cli.console import errors_become_exit_codes
from simic.cli.main import app
from simic.contracts.episode import AttributionReport, WatchReport
from simic.contracts.results.receipts import CollectionReceipt
from simic.runtime.home import Home

SIMIC = Path(sys.executable).with_name("simic")
SMALL = ("-o", "world.horizon=5", "-o", "world.workers=1")


class Done(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


Simic = Callable[..., Done]


@pytest.fixture(autouse=True)
def made_home(home: Path) -> None:
    """Nothing was collected in it."""
    Home(home).create()


@pytest.fixture
def simic(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Simic:
    """The command in this process, which has its libraries loaded; its output is no terminal."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setenv("COLUMNS", "200")
    command = typer.main.get_command(app)

    def call(*arguments: str) -> Done:
        with pytest.raises(SystemExit) as ended, errors_become_exit_codes():
            command(list(arguments), prog_name="simic")
        shown = capsys.readouterr()
        return Done(int(ended.value.code or 0), shown.out, shown.err)

    return call


def test_into_a_pipe_every_epoch_is_a_plain_line(home: Path, simic: Simic) -> None:
    done = simic("watch", "--controller", "random", "--key", "15", "--delay", "9", *SMALL)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == "random on host 15: family cap of set benchmark, train split, 5 epochs"
    assert [line[:9] for line in lines[1:6]] == [f"epoch {number:3d}" for number in range(5)]
    assert lines[6] == "Ran for 5 of 5 epochs."
    assert len(lines) == 11
    assert lines[10].startswith("parameters kept | ") and " | wait " in lines[10]
    assert done.out.isascii()
    assert "\x1b" not in done.out
    assert not (home / "data" / "receipts" / "watch").exists(), "looking leaves nothing behind"


def test_whoever_names_no_controller_in_a_home_without_a_champion_is_told_who_acts(simic: Simic) -> None:
    done = simic("watch", "--key", "15", *SMALL)
    assert done.err.splitlines() == ["this home has no champion, so heuristic acts; --controller names another"]
    assert done.out.startswith("heuristic on host 15")


def test_json_is_one_document_with_every_epoch_and_nothing_else(simic: Simic) -> None:
    done = simic("watch", "--key", "15", "--set", "benchmark", "--json", *SMALL)
    assert (done.code, done.err) == (0, "")
    report = WatchReport.model_validate_json(done.out)
    assert report.episode.controller == "heuristic"
    assert [record.epoch for record in report.episode.epochs] == list(range(5))
    assert json.loads(done.out)["episode"]["epochs"][0]["slots"][0]["contribution"] is None


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--controller", "herustic"), "heuristic"),
        (("--set", "nowhere"), "benchmark"),
        (("--key", "-1"), "'--key': expected a whole number from 0 to 2147483647, found -1"),
        (("--key", "x"), "'--key': expected a whole number from 0 to 2147483647, found 'x'"),
        (("--seed", "-1"), "'--seed': expected 0 or more, found -1"),
        (("--delay", "-1"), "--delay"),
        (("-o", "world.horizn=5"), "world.horizon"),
        (("--controller", "champion"), "champion"),
    ],
)
def test_mistakes_are_usage_errors_that_name_what_is_right(arguments: tuple[str, ...], told: str, simic: Simic) -> None:
    done = simic("watch", *arguments)
    assert (done.code, done.out) == (2, ""), done.err
    assert told in " ".join(done.err.replace("│", " ").split())
    assert "Traceback" not in done.err


def test_help_teaches_with_an_example_that_works(simic: Simic) -> None:
    (line,) = (line.strip() for line in simic("watch", "--help").out.splitlines() if "Example:" in line)
    example = line.removeprefix("Example: simic ").split()
    assert example[0] == "watch"
    assert simic(*example, *SMALL).code == 0


def _on_a_terminal(*arguments: str, until: bytes | None = None) -> tuple[int, bytes]:
    """Exit code and all that a terminal of 110 by 40 was sent; Ctrl-C is pressed once ``until`` was seen."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update({"TERM": "xterm-256color", "COLUMNS": "110", "LINES": "40"})
        os.execv(SIMIC, ["simic", *arguments])  # noqa: S606
    seen, pressed = b"", False
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # how Linux says that the other side is gone
            break
        if not part:
            break
        seen += part
        if until is not None and not pressed and until in seen:
            os.write(terminal, b"\x03")
            pressed = True
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), seen


def test_on_a_terminal_a_table_grows_and_stays(home: Path) -> None:
    code, seen = _on_a_terminal("watch", "--controller", "random", "--key", "15", "--delay", "0", *SMALL)
    assert code == 0
    for words in ("epoch 1 of 5", "epoch 5 of 5", "slot", "return, points", "committed validation accuracy"):
        assert words.encode() in seen, words
    assert seen.rfind(b"\x1b[?25h") > seen.rfind(b"\x1b[?25l"), "the cursor is back"


def test_ctrl_c_ends_it_at_once_with_130_and_what_was_seen_stays(home: Path) -> None:
    code, seen = _on_a_terminal("watch", "--key", "15", "--delay", "30", *SMALL, until=b"epoch 1 of 5")
    assert code == 130
    assert b"Traceback" not in seen
    assert seen.rfind(b"\x1b[?25h") > seen.rfind(b"\x1b[?25l")
    assert seen.rfind(b"decision") > seen.rfind(b"epoch 1 of 5")
    assert b"return, points" not in seen


def test_collecting_with_a_plot_writes_a_png_and_the_receipt_alone_on_stdout(
    home: Path, tmp_path: Path, simic: Simic
) -> None:
    picture = tmp_path / "timeline.png"
    done = simic("collect", "--controller", "random", "--host-keys", "0:5", "--plot", str(picture), "--json", *SMALL)
    assert done.code == 0, done.err
    assert CollectionReceipt.model_validate_json(done.out).episodes == 5
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert str(picture) in done.err
    refused = simic("collect", "--plot", str(tmp_path / "timeline.pdf"), *SMALL)
    assert (refused.code, refused.out) == (2, "")
    assert ".png" in refused.err


def test_attribution_adds_up_to_the_gain_of_all_seeds(simic: Simic) -> None:
    arguments = ("watch", "--controller", "oracle", "--key", "15", "--attribution", "-o", "world.workers=1")
    done = simic(*arguments, "--json")
    assert (done.code, done.err) == (0, "")
    report = AttributionReport.model_validate_json(done.out)
    found = report.attribution
    assert found.seeds, "the oracle grows something"
    assert sum(seed.shapley for seed in found.seeds) == pytest.approx(found.everything - found.nothing, abs=1e-9)
    slots = report.episode.epochs[-1].slots
    assert [slots[seed.slot].blueprint for seed in found.seeds] == [seed.blueprint for seed in found.seeds]
    lines = simic(*arguments).out.splitlines()[-1 - len(found.seeds) :]
    gain = 100 * (found.everything - found.nothing)
    assert lines[0] == f"all seeds together | {gain:+.1f} points of validation accuracy"
    assert lines[1].startswith(f"slot {found.seeds[0].slot} {found.seeds[0].blueprint} | Shapley value ")


def test_attribution_of_a_host_that_grew_nothing_is_empty(simic: Simic) -> None:
    done = simic("watch", "--controller", "wait", "--key", "15", "--attribution", "--json", *SMALL)
    found = AttributionReport.model_validate_json(done.out).attribution
    assert (found.seeds, found.nothing) == ([], found.everything)
