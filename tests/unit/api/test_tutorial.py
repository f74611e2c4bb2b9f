"""docs/tutorial.md as a reader does it: the code as one program, then the commands in their order."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from simic.cli.main import app
from simic.runtime.home import Home

PAGE = Path(__file__).parents[3] / "docs" / "tutorial.md"
KEPT = re.compile(r"heuristic: [\d.]+% of the test images, (\d+) parameters")


def test_the_tutorial_runs(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Home(home).create()  # all that `simic init` does for this page; it also makes MLflow's database
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    program = "\n".join(text for language, text in blocks if language == "python")
    threads = torch.get_num_threads()
    names: dict[str, Any] = {}
    exec(compile(program, str(PAGE), "exec"), names)  # noqa: S102 - the text of our own page
    torch.set_num_threads(threads)
    printed = capsys.readouterr().out
    assert "None: " in printed
    assert KEPT.search(printed), printed
    command = typer.main.get_command(app)
    shell = [line for language, text in blocks if not language for line in text.splitlines()]
    verbs = [line for line in shell if line.startswith("simic ") and line != "simic init"]
    assert len(verbs) == 6
    answers = []
    for line in verbs:
        with pytest.raises(SystemExit) as ended:
            command(shlex.split(line)[1:], prog_name="simic")
        answers.append(capsys.readouterr().out)
        assert not ended.value.code, line
    assert re.search(r"landed +20\b", answers[0])
    assert re.search(r"quarantined +0\b", answers[0])
    assert (tmp_path / "timeline.png").read_bytes()[:4] == b"\x89PNG"
    assert "GERMINATE" in answers[2]
    assert re.search(r"heuristic +terminated", answers[3])
    assert answers[5].count("WAIT") >= 1
