"""The sources that decide how the hosts of a set train."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

from simic.hosts.shipped_sets import MODULES, SETS

__all__ = ["set_sources"]

_PACKAGE = Path(__file__).parent
_OPTIONAL = ("families", "trunks")
"""Folders of which a set uses some files."""
_MODULE_HOSTS = "custom"
"""Folder of hosts that are modules of their own; stacked hosts do not use it."""
_TABLE = "shipped_sets.py"


def set_sources(set_name: str) -> tuple[str, ...]:
    """Return paths below ``simic``: this package without the table of sets and without files that the set does not use.

    A name that is not in the table is a family's, which may be a module and whose trunk may be any. Files of other
    packages are not covered.
    """
    is_stacked = set_name in SETS and SETS[set_name].kind != MODULES
    apart = {*_OPTIONAL, _MODULE_HOSTS} if is_stacked else {*_OPTIONAL}
    core = (path for path in _PACKAGE.rglob("*.py") if path.parent.name not in apart and path.name != _TABLE)
    if set_name in SETS:
        used = [*(f"families.{name}" for name in SETS[set_name].families), f"trunks.{SETS[set_name].kind}"]
    else:
        used = [f"families.{set_name}", *(f"trunks.{path.stem}" for path in (_PACKAGE / "trunks").glob("*.py"))]
    return tuple(sorted(path.relative_to(_PACKAGE.parent).as_posix() for path in (*core, *_with_imports(used))))


def _with_imports(modules: Iterable[str]) -> set[Path]:
    """Return the files of modules, and those that they import from the same folders."""
    paths: set[Path] = set()
    waiting = list(modules)
    while waiting:
        path = _PACKAGE.joinpath(*waiting.pop().split(".")).with_suffix(".py")
        if path not in paths and path.is_file():
            paths.add(path)
            waiting += _imports_of(path)
    return paths


def _imports_of(path: Path) -> list[str]:
    package = f"{__package__}."
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    modules = (node.module or "" for node in nodes if isinstance(node, ast.ImportFrom))
    return [name.removeprefix(package) for name in modules if name.removeprefix(package).startswith(_OPTIONAL)]
