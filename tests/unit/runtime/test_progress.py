"""Bars for a terminal, lines for a file, nothing where nothing is wanted."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time

import pytest
from rich.console import Console

from simic.runtime import progress
from simic.runtime.progress import NoProgress, RichProgress, Titled

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


def lines(text: str) -> list[str]:
    return [line.rpartition(" in ")[0] or line for line in text.splitlines()]


def test_a_file_gets_a_first_and_a_last_line() -> None:
    file = io.StringIO()
    with RichProgress(Console(file=file)).task("collect", 10) as advance:
        for _ in range(5):
            advance(2)
    assert lines(file.getvalue()) == ["collect: 0/10", "collect: 10/10"]


def test_slow_work_says_so_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    file = io.StringIO()
    with RichProgress(Console(file=file)).task("collect", 4) as advance:
        advance(1)
        advance(2)
    assert lines(file.getvalue()) == ["collect: 0/4", "collect: 1/4, 0 s", "collect: 3/4, 0 s", "collect: 3/4"]


def test_a_unit_that_takes_long_is_followed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.5)
    out = io.StringIO()
    with RichProgress(Console(file=out, width=80)).task("validate", 5):
        time.sleep(1.3)
    assert out.getvalue().splitlines()[:2] == ["validate: 0/5", "validate: 0/5, 1 s"]


def test_work_that_fails_still_says_how_far_it_came() -> None:
    file = io.StringIO()
    with pytest.raises(ValueError, match="broken"), RichProgress(Console(file=file)).task("train", 4) as advance:
        advance(1)
        raise ValueError("broken")
    assert lines(file.getvalue())[-1] == "train: 1/4"


def test_a_title_stands_before_the_names_of_what_begins_within() -> None:
    file = io.StringIO()
    progress = RichProgress(Console(file=file))
    with progress.task("collect", 0):
        pass
    shown = Titled(progress, "round 2 of 3")
    with pytest.raises(ValueError, match="broken"), shown.task("train", 1) as advance:
        advance(1)
        raise ValueError("broken")
    with progress.task("validate", 0):
        pass
    assert lines(file.getvalue())[1:5] == [
        "collect: 0/0", "round 2 of 3: train: 0/1", "round 2 of 3: train: 1/1", "validate: 0/0",
    ]  # fmt: skip


def test_names_are_not_markup() -> None:
    file = io.StringIO()
    with RichProgress(Console(file=file)).task("[red]trials[/red]", 0):
        pass
    assert "[red]trials[/red]: 0/0" in file.getvalue()


def test_a_terminal_gets_bars_one_below_the_other_and_nested_ones_together() -> None:
    file = io.StringIO()
    shown = RichProgress(Console(file=file, force_terminal=True, width=80))
    with shown.task("outer", 2) as outer:
        with shown.task("inner", 3) as inner:
            inner(3)
        outer(2)
    first = file.getvalue()
    assert "outer" in first
    assert "3/3" in first
    assert first.count(HIDE_CURSOR) == first.count(SHOW_CURSOR) == 1
    with shown.task("later", 1) as advance:
        advance(1)
    second = file.getvalue().removeprefix(first)
    assert "later" in second
    assert "outer" not in second
    assert second.count(HIDE_CURSOR) == second.count(SHOW_CURSOR) == 1


def test_the_default_writes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with RichProgress().task("collect", 1) as advance:
        advance(1)
    out, err = capsys.readouterr()
    assert out == ""
    assert "collect: 1/1" in err


def test_work_whose_progress_nobody_reads_goes_on() -> None:
    """A pipe without a reader refuses each line; what the work prints on standard output is another matter."""
    work = "with RichProgress().task('collect', 1) as advance: advance(1)\nprint('done')"
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", f"from simic.runtime.progress import RichProgress\n{work}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=writer, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_no_progress_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with NoProgress().task("collect", 1) as advance:
        advance(1)
    assert capsys.readouterr() == ("", "")


def test_a_note_stands_beside_the_bar_and_in_the_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    file, screen = io.StringIO(), io.StringIO()
    with RichProgress(Console(file=file)).task("train", 4) as advance:
        advance(1, "vtrace: [loss] 0.5")
        advance(1)
        advance(0, "")
    assert lines(file.getvalue())[1:4] == [
        "train: 1/4, 0 s, vtrace: [loss] 0.5", "train: 2/4, 0 s, vtrace: [loss] 0.5", "train: 2/4, 0 s",
    ]  # fmt: skip
    with RichProgress(Console(file=screen, force_terminal=True, width=120)).task("train", 4) as advance:
        advance(1, "vtrace: [loss] 0.5")
    assert "vtrace: [loss] 0.5" in screen.getvalue()
