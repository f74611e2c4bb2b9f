"""The runbook: what it tells an operator to type can be typed, and every fault in its table has its test."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
import typer.main

from simic.catalogue.query import query
from simic.runtime.home import Home

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "runbook.md").read_text("utf-8")
COMMANDS = sorted(
    {line for block in re.findall(r"^```\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE) for line in block.splitlines()}
    | set(re.findall(r"`(simic [^`]*)`", TEXT))
)
ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in TEXT.splitlines() if line.startswith("| ")]
QUERIES = [shlex.split(command)[2] for command in COMMANDS if command.startswith('simic sql "')]


def exists(node: str) -> bool:
    """Whether ``file::function`` names a test."""
    file, _, name = node.partition("::")
    path = ROOT / file
    if not path.is_file():
        return False
    functions = [item.name for item in ast.parse(path.read_text("utf-8")).body if isinstance(item, ast.FunctionDef)]
    return name in functions and name.startswith("test_")


def test_every_row_names_a_fault_what_to_do_and_a_test_that_exists() -> None:
    attacked = ROWS.index(["Attack", "Tried", "Result", "What to do", "Test"])
    assert ROWS[0] == ["Fault", "What you see", "What happens by itself", "What to do", "Test"]
    rows = [*ROWS[1:attacked], *ROWS[attacked + 1 :]]
    assert attacked > 30
    assert [row for row in ROWS[attacked + 1 :] if not re.search(r"\d", row[1])] == []
    assert [row for row in rows if len(row) != 5 or not all(row)] == []
    assert [row[4] for row in rows if not exists(row[4].strip("`"))] == []


def test_a_test_that_does_not_exist_is_noticed() -> None:
    assert exists("tests/unit/test_runbook.py::test_a_test_that_does_not_exist_is_noticed")
    assert not exists("tests/unit/test_runbook.py::exists")
    assert not exists("tests/unit/test_runbook.py::test_something_else")
    assert not exists("tests/unit/test_none.py::test_a_test_that_does_not_exist_is_noticed")


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("simic ")])
def test_every_command_of_ours_exists_with_its_options(command: str) -> None:
    from simic.cli.main import app

    words = shlex.split(command)[1:]
    found = typer.main.get_command(app)
    while words and hasattr(found, "commands"):
        assert words[0] in found.commands, command
        found = found.commands[words.pop(0)]
    options = {name for parameter in found.params for name in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= options, command


@pytest.mark.parametrize("sql", QUERIES)
def test_every_query_can_be_asked(sql: str, tmp_path: Path) -> None:
    assert query(Home(tmp_path), sql) is not None


def test_sections_that_a_row_points_to_exist() -> None:
    titles = set(re.findall(r"^## (.+)$", TEXT, re.MULTILINE))
    assert {title for row in ROWS for title in re.findall(r"\*([^*]+)\*", row[3])} <= titles
