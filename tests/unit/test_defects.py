"""``docs/defects.md`` and the tests agree on which fault of earlier systems each test holds."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from draw_architecture import ROOT, modules

TABLE = ROOT / "docs" / "defects.md"
ABSENT = ROOT / "docs" / "adr" / "0006-faults-this-design-cannot-have.md"
ISSUES = frozenset({"Hosts worth growing", "The learner in full", "Judgement in full", "In other people's training"})
"""Titles of the planned work that an open row may name."""
KINDS = ("open: ", "absent: ", "lint: ", "refused: ", "review: ", "now: ")

Key = tuple[str, int]
"""Letters and number of an id, so that DRL-08, drl_8 and drl08 are one."""


class Row(NamedTuple):
    """One line of the table."""

    id: str
    statement: str
    tests: frozenset[str]
    """``path::name`` or ``path::beginning*``."""
    notes: tuple[str, ...]
    """Everything else that holds it, as ``kind: words``."""


@cache
def rows() -> dict[str, Row]:
    """Return the rows of the table by their ids."""
    found = [parse(line) for line in TABLE.read_text("utf-8").splitlines() if re.match(r"\| (?!id |-)", line)]
    assert len(found) == len({row.id for row in found}), "an id has two rows"
    return {row.id: row for row in found}


def parse(line: str) -> Row:
    """Return the row that a line of the table holds."""
    name, statement, held_by = (cell.strip() for cell in line.strip().strip("|").split("|"))
    parts = held_by.split("<br>")
    tests = frozenset(part.strip("`") for part in parts if part.startswith("`"))
    return Row(name, statement, tests, tuple(part for part in parts if not part.startswith("`")))


@cache
def all_tests() -> dict[str, str]:
    """Return the docstring of every test, by ``path::name``."""
    return {
        f"{path.relative_to(ROOT).as_posix()}::{node.name}": ast.get_docstring(node) or ""
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if path != Path(__file__)
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


@cache
def by_key() -> dict[Key, str]:
    """Return the ids that are letters and a number."""
    matches = {name: re.fullmatch(r"([A-Za-z]+)-?(\d+)", name) for name in rows()}
    return {(match[1].lower(), int(match[2])): name for name, match in matches.items() if match is not None}


def claims(name: str, docstring: str) -> set[str]:
    """Return the ids of rows in the name and in the docstring of a test."""
    in_name = re.findall(r"(?<![a-z0-9])([a-z]+)_?(\d+)(?=_|$)", name)
    in_words = re.findall(r"\b([A-Z]+)-?(\d+)\b", docstring)
    keys = {(letters.lower(), int(number)) for letters, number in (*in_name, *in_words)}
    return {by_key()[key] for key in keys & set(by_key())}


def matching(pattern: str) -> set[str]:
    """Return the tests that an entry of the table names."""
    if pattern.endswith("*"):
        return {test for test in all_tests() if test.startswith(pattern[:-1])}
    own = f"{Path(__file__).relative_to(ROOT).as_posix()}::"
    if pattern.startswith(own):
        return {pattern} if callable(globals().get(pattern.removeprefix(own))) else set()
    return {pattern} & set(all_tests())


def test_every_test_that_a_row_names_exists() -> None:
    assert {(row.id, test) for row in rows().values() for test in row.tests if not matching(test)} == set()


def test_every_test_that_names_a_row_is_named_by_it() -> None:
    held = {name: {test for pattern in row.tests for test in matching(pattern)} for name, row in rows().items()}
    claimed = {(name, test) for test, words in all_tests().items() for name in claims(test.partition("::")[2], words)}
    assert {(name, test) for name, test in claimed if test not in held[name]} == set()


def test_every_row_says_what_holds_it() -> None:
    for row in rows().values():
        assert row.tests or row.notes, row.id
        assert all(note.startswith(KINDS) and note.partition(": ")[2] for note in row.notes), row
        assert len(row.statement.split()) >= 4, row.id


def test_what_the_code_does_instead_stands_beside_an_open_row_or_tests() -> None:
    rest = {row.id for row in rows().values() if not row.tests and {note[:4] for note in row.notes} == {"now:"}}
    assert rest == set()


def test_what_is_open_names_the_planned_work() -> None:
    titles = {note.removeprefix("open: ") for row in rows().values() for note in row.notes if note.startswith("open: ")}
    assert titles <= ISSUES


def test_what_holds_by_absence_is_recorded_as_a_decision() -> None:
    recorded = ABSENT.read_text("utf-8")
    absent = [row for row in rows().values() for note in row.notes if note.startswith("absent: ")]
    missing = {row.id for row in absent for name in row.id.split("/") if name[:4] not in recorded}
    assert {row.id for row in absent if not re.search(rf"\b{re.escape(row.id.split('/')[0])}\b", recorded)} == set()
    assert missing == set()


def test_the_rules_that_a_row_relies_on_are_selected() -> None:
    selected = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["ruff"]["lint"]["select"]
    notes = [note for row in rows().values() for note in row.notes if note.startswith("lint: ")]
    assert {rule for note in notes for rule in note.removeprefix("lint: ").split(", ")} <= set(selected)


def test_no_code_asks_which_local_names_exist() -> None:
    names = {name for name, path in modules().items() if calls(ast.parse(path.read_text("utf-8")), {"locals", "vars"})}
    assert names == set()


def test_no_import_stands_in_a_loop() -> None:
    trees = {name: ast.parse(path.read_text("utf-8")) for name, path in modules().items()}
    assert {name for name, tree in trees.items() if imports_in_a_loop(tree)} == set()


def calls(tree: ast.AST, names: set[str]) -> bool:
    """Whether any function of these names is called without arguments."""
    return any(
        isinstance(node, ast.Call) and not node.args and isinstance(node.func, ast.Name) and node.func.id in names
        for node in ast.walk(tree)
    )


def imports_in_a_loop(tree: ast.AST) -> bool:
    """Whether the body of a loop imports something; a function defined in one counts too."""
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For | ast.While | ast.AsyncFor)]
    return any(isinstance(inner, ast.Import | ast.ImportFrom) for loop in loops for inner in ast.walk(loop))


def test_the_searches_find_what_they_look_for() -> None:
    assert calls(ast.parse("if 'x' in locals(): pass"), {"locals", "vars"})
    assert not calls(ast.parse("vars(x)"), {"locals", "vars"})
    assert imports_in_a_loop(ast.parse("for x in y:\n    if x:\n        import z"))
    assert not imports_in_a_loop(ast.parse("import z\nfor x in y: pass"))


@pytest.mark.parametrize(
    ("name", "words", "expected"),
    [
        ("test_m1_no_epsilon", "", {"M1"}),
        ("test_m10_x", "", {"M10"}),
        ("test_drl_8_x", "", {"DRL-08"}),
        ("test_lf11_x", "", {"LF-11"}),
        ("test_drl08_x", "D5 and PD-2.", {"DRL-08", "D5", "PD-2"}),
        ("test_l10_l20_x", "", {"L10", "L20"}),
        ("test_a_round_of_8_episodes", "Nothing of xM1.", set()),
    ],
)
def test_a_claim_is_read_from_the_name_and_the_docstring(name: str, words: str, expected: set[str]) -> None:
    assert claims(name, words) == expected
