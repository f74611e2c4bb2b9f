"""A file that cannot be written is refused before the work; a folder that does not exist is not made."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from simic.cli.console import errors_become_exit_codes
from simic.cli.main import app
from simic.runtime.home import Home


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("timeline --plot", "x.png"),
        ("collect --plot", "x.png"),
        ("compare wait random --host-keys 1,2 --plot", "x.png"),
        ("ab quick default --plot", "x.png"),
        ("ab quick default --out", "x.md"),
        ("proof --profile quick --out", "x.md"),
        ("diff-policies wait random --out", "x.html"),
        ("plans search --out", "x.json"),
        ("export champion --torch-export", "x.pt2"),
        ("sql FROM\N{NO-BREAK SPACE}range(2) --csv", "x.csv"),
    ],
)
def test_a_mistyped_folder_is_refused_and_not_made(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], call: str, name: str
) -> None:
    Home(home).create()
    words = [word.replace("\N{NO-BREAK SPACE}", " ") for word in call.split(" ")]
    folder = tmp_path / "absent"
    with pytest.raises(SystemExit) as ended, errors_become_exit_codes():
        typer.main.get_command(app)([*words, str(folder / name)], prog_name="simic")
    assert ended.value.code == 2
    assert f"expected a folder {folder}, found none; create it first" in " ".join(capsys.readouterr().err.split())
    assert not folder.exists()


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("ab quick default --out", "x.md"),
        ("proof --profile quick --out", "x.md"),
        ("diff-policies wait random --out", "x.html"),
        ("plans search --out", "x.json"),
        ("export champion --torch-export", "x.pt2"),
    ],
)
def test_a_file_in_a_folder_that_takes_none_is_refused_before_the_work(
    home: Path, capsys: pytest.CaptureFixture[str], call: str, name: str
) -> None:
    Home(home).create()
    with pytest.raises(SystemExit) as ended, errors_become_exit_codes():
        typer.main.get_command(app)([*call.split(), f"/proc/{name}"], prog_name="simic")
    assert ended.value.code == 2
    said = f"{call.split()[-1]} '/proc/{name}': expected a place where a file can be written, found: "
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_page_or_its_plot_that_is_a_folder_is_refused_before_the_work(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Home(home).create()
    page = tmp_path / "x.md"
    for folder, said in ((page, f"--out '{page}': expected a place"), (page.with_suffix(".png"), "the plot of --out ")):
        folder.mkdir()
        with pytest.raises(SystemExit) as ended, errors_become_exit_codes():
            typer.main.get_command(app)(["ab", "quick", "default", "--out", str(page)], prog_name="simic")
        assert ended.value.code == 2
        assert said in " ".join(capsys.readouterr().err.split())
        folder.rmdir()
