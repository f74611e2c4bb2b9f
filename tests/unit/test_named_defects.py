"""Faults of earlier systems that touch experience: each row of that list has a test here which names it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ROWS = (
    *("D6", "D23", "D26", "BUFFER-001", "BUFFER-002", "PD-2", "PD-5", "C1", "H8", "H9", "H10", "H11"),
    *("M1", "M2", "M3", "M4", "M5", "L3", "L10", "DRL-04", "DRL-09"),
)


def words_of_tests() -> list[str]:
    """Name and docstring of every test, as ``name: docstring``."""
    functions = [
        node
        for path in sorted(TESTS.rglob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    return [f"{function.name}: {ast.get_docstring(function) or ''}" for function in functions]


WORDS = words_of_tests()


def names(row: str, words: str) -> bool:
    """``DRL-04`` in the docstring, or ``drl_04`` or ``drl04`` in the name."""
    name, _, told = words.partition(":")
    in_name = "_?".join(map(re.escape, row.lower().split("-")))
    return bool(re.search(rf"\b{re.escape(row)}\b", told) or re.search(rf"(?:^|_){in_name}(?:_|$)", name))


@pytest.mark.parametrize("row", ROWS)
def test_every_row_is_named_by_a_test(row: str) -> None:
    assert any(names(row, words) for words in WORDS)


@pytest.mark.parametrize("words", ["test_x: M1; more", "test_m1_x: ", "test_x_m1: "])
def test_a_row_is_found_in_name_and_docstring(words: str) -> None:
    assert names("M1", words)
    assert names("DRL-04", words.replace("m1", "drl_04").replace("M1", "DRL-04"))


def test_a_row_is_not_taken_for_another() -> None:
    assert not names("M1", "test_m10_x: M11, xM1")
