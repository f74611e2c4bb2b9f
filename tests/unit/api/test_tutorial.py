"""docs/tutorial.md as a reader does it: the code as one program, then the commands in their order."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from simic.cli.main import app
from simic.runtime.home import Home
from simic.validation import off_policy

PAGE = Path(__file__).parents[3] / "docs" / "tutorial.md"
KEPT = re.compile(r"heuristic: [\d.]+% of the test images, (\d+) parameters")
SECOND = "\n## 7. "
FEWER = {"log 60": "log 2", "DIGEST 16": "DIGEST 2", "min_experiences=400": "min_experiences=10", "1000": "200"}
"""The same with fewer networks and windows."""

Run = Callable[[str], str]


def blocks_of(part: int) -> list[tuple[str, str]]:
    """Language and text of the blocks of the first or the second part of the page."""
    text = PAGE.read_text("utf-8").partition(SECOND)[2 * part]
    for full, fewer in FEWER.items() if part else ():
        text = text.replace(full, fewer)
    return re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def program_of(part: int) -> Any:
    return compile("\n".join(text for language, text in blocks_of(part) if language == "python"), str(PAGE), "exec")


def verbs_of(part: int) -> list[str]:
    lines = [line for language, text in blocks_of(part) if not language for line in text.splitlines()]
    return [line for line in lines if line.startswith(("simic ", "python ")) and line != "simic init"]


@pytest.fixture(autouse=True)
def _beginning(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    Home(home).create()  # all that `simic init` does for this page; it also makes MLflow's database
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    command = typer.main.get_command(app)

    def verb(line: str) -> str:
        with pytest.raises(SystemExit) as ended:
            command(shlex.split(line)[1:], prog_name="simic")
        assert not ended.value.code, line
        return capsys.readouterr().out

    return verb


def test_the_tutorial_runs(tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    exec(program_of(0), {})  # noqa: S102 - the text of our own page
    printed = capsys.readouterr().out
    assert "None: " in printed
    assert KEPT.search(printed), printed
    verbs = [line for line in verbs_of(0) if line.startswith("simic")]
    assert len(verbs) == 6
    answers = [run(line) for line in verbs]
    assert re.search(r"landed +20\b", answers[0])
    assert re.search(r"quarantined +0\b", answers[0])
    assert (tmp_path / "timeline.png").read_bytes()[:4] == b"\x89PNG"
    assert "GERMINATE" in answers[2]
    assert re.search(r"heuristic +terminated", answers[3])
    assert answers[5].count("WAIT") >= 1


def test_the_part_about_a_transformer_trains_a_policy_and_judges_it(
    tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(off_policy, "SAMPLES", 200)
    program, answers, digest = program_of(1), dict[str, str](), ""
    for line in verbs_of(1):
        words = shlex.split(line.replace("DIGEST", digest))
        if words[0] == "python":
            monkeypatch.setattr(sys, "argv", words[1:])
            exec(program, {})  # noqa: S102 - the text of our own page
            answers["log" if words[2] == "log" else "compare"] = capsys.readouterr().out
            continue
        answers[words[1]] = run(shlex.join(words))
        if words[1] == "train":
            digest = re.search(r"^digest +(\w+)", answers["train"], re.MULTILINE)[1]  # type: ignore[index]
    assert list(answers) == ["log", "ingest", "timeline", "sql", "curate", "train", "evaluate", "compare"]
    assert re.search(r"landed +24\b", answers["ingest"])
    assert re.search(r"quarantined +0\b", answers["ingest"])
    assert (tmp_path / "characters.png").read_bytes()[:4] == b"\x89PNG"
    assert "WAIT" in answers["sql"]
    assert re.search(r"rows out +24\b", answers["curate"])
    assert "insufficient evidence" in answers["evaluate"]
    assert re.search(r"^grown +\d.*no difference shown", answers["compare"], re.MULTILINE)
