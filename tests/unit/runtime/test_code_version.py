"""The version changes exactly when a source file does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simic.runtime.code_version import code_version, tree_digest


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "simic" / "sql").mkdir(parents=True)
    (tmp_path / "simic" / "a.py").write_text("a = 1\n")
    (tmp_path / "simic" / "sql" / "010.sql").write_text("SELECT 1\n")
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "f.toml").write_text("x = 1\n")
    return tmp_path


def test_it_names_release_and_digest() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\+[0-9a-f]{12}", code_version())
    assert code_version() == code_version()


@pytest.mark.parametrize("name", ["simic/a.py", "simic/sql/010.sql", "flows/f.toml"])
def test_a_changed_source_changes_it(tree: Path, name: str) -> None:
    before = tree_digest(tree, ("simic", "flows"))
    (tree / name).write_bytes((tree / name).read_bytes().replace(b"1", b"2"))
    assert tree_digest(tree, ("simic", "flows")) != before


def test_a_renamed_source_changes_it(tree: Path) -> None:
    before = tree_digest(tree, ("simic",))
    (tree / "simic" / "a.py").rename(tree / "simic" / "b.py")
    assert tree_digest(tree, ("simic",)) != before


def test_bytecode_notes_and_other_packages_do_not(tree: Path) -> None:
    before = tree_digest(tree, ("simic",))
    (tree / "simic" / "__pycache__").mkdir()
    (tree / "simic" / "__pycache__" / "a.cpython-311.pyc").write_bytes(b"x")
    (tree / "simic" / "notes.md").write_text("x")
    (tree / "flows" / "f.toml").write_text("x = 2\n")
    assert tree_digest(tree, ("simic",)) == before
    assert tree_digest(tree, ("simic", "absent")) == before


def test_the_place_of_the_checkout_does_not_matter(tree: Path) -> None:
    moved = tree.parent / f"{tree.name}-moved"
    before = tree_digest(tree, ("simic", "flows"))
    tree.rename(moved)
    assert tree_digest(moved, ("simic", "flows")) == before
