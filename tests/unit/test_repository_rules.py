"""Rules of the repository: imports, dependencies and their pins, targets of make, sizes of files, unused names."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from simic.runtime.home import Home

ROOT = Path(__file__).parents[2]
PACKAGES = ("simic", "flows", "tasks")
SOURCES = sorted(path.relative_to(ROOT).as_posix() for name in PACKAGES for path in (ROOT / name).rglob("*.py"))
HEAVY = (
    "torch",
    "torch_geometric",
    "mlflow",
    "prefect",
    "pandas",
    "sklearn",
    "matplotlib",
    "duckdb",
    "pyarrow",
    "psutil",
    "lightning",
    "transformers",
)
MAX_LINES = 500

HELP = "import sys; sys.argv = ['simic', '--help']\nfrom simic.cli import main\ntry: main()\nexcept SystemExit: pass"

OPTIONAL = {
    "simic/bus/redis": "redis",
    "simic/integrations/lightning.py": "lightning",
    "simic/integrations/transformers.py": "transformers",
    "simic/replay/exports": "export",
}
"""Packages and modules that may import what only an extra installs, and the extra."""

FORBIDDEN_IMPORTS = {
    "simic/contracts/forbidden.py": "import torch",
    "simic/bus/forbidden.py": "import simic.lake.lake",
    "simic/trust/forbidden.py": "import simic.ledgers.ledger",
    "simic/lake/forbidden.py": "import simic.curation",
    "simic/numerics/forbidden.py": "import simic.contracts.base",
    "simic/validation/forbidden.py": "import mlflow",
    "simic/replay/forbidden.py": "import duckdb",
    "simic/curation/forbidden.py": "import minari",
    "simic/api/forbidden.py": "import prefect",
    "simic/app/forbidden.py": "import lightning",
    "simic/ingestion/forbidden.py": "import redis",
    "tasks/forbidden.py": "import flows",
    "simic/learning/forbidden.py": "import tasks",
}


@pytest.mark.parametrize("code", ["import simic", HELP], ids=["import", "help"])
def test_import_and_help_load_nothing_heavy(code: str) -> None:
    probe = f"{code}\nimport sys; sys.stderr.write(' '.join(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("simic.app.container", ("torch", "mlflow", "duckdb", "pyarrow", "psutil")),
        ("simic.app.data", ("torch", "mlflow")),
        ("simic.app.promotion", ("torch", "mlflow")),
        (
            "simic.api.policy",
            ("mlflow", "duckdb", "pyarrow", "simic.contracts.settings.run", "simic.contracts.results.receipts"),
        ),
    ],
)
def test_commands_load_only_what_they_need(module: str, absent: tuple[str, ...]) -> None:
    probe = f"import {module}, sys; sys.stderr.write(' '.join(name for name in {absent!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stderr == ""


TYPING_ERRORS = (
    "trials --controllers wiat", "trials --set benchmrak", "compare wiat wait", "evaluate wiat",
    "watch --controller wiat", "collect --controller wiat", "diff-policies wiat wait", "run --profile quik",
    "plans headroom --set varyed", "ab quick quik", "ab quick quick --set varyed", "proof --set varyed",
    "proof --also varyed",
)  # fmt: skip


def test_a_name_that_does_not_exist_is_answered_before_torch_is_loaded(home: Path) -> None:
    """Importing it takes longer than reading the answer; ``home`` exists so that no line fails for want of one."""
    Home(home).create()
    probe = f"""
import sys
from simic.cli import main
for line in {TYPING_ERRORS!r}:
    sys.argv = ["simic", *line.split()]
    try:
        main()
    except SystemExit as left:
        assert left.code == 2, (line, left.code)
    assert "torch" not in sys.modules, line
"""
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("ConfigError") == len(TYPING_ERRORS)


def lint_imports(root: Path) -> tuple[int, str]:
    """Exit code and report of the contracts in pyproject.toml over the packages in ``root``."""
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"]
    done = subprocess.run(
        [*command, "--config", ROOT / "pyproject.toml"],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_the_import_contracts_are_kept() -> None:
    code, report = lint_imports(ROOT)
    assert code == 0, report


def test_every_import_contract_catches_a_forbidden_import(tmp_path: Path) -> None:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, line in FORBIDDEN_IMPORTS.items():
        (tmp_path / name).write_text(line + "\n")
    (tmp_path / "simic" / "attic").mkdir()
    (tmp_path / "simic" / "attic" / "__init__.py").touch()
    code, report = lint_imports(tmp_path)
    assert code == 1
    assert " 0 kept" in report, "every contract is broken by a module of its own"
    for name, line in FORBIDDEN_IMPORTS.items():
        module = name.removesuffix(".py").replace("/", ".")
        assert f"{module} -> {line.removeprefix('import ')}" in report
    assert "- simic.attic" in report, "a package on no layer"


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def needed(name: str, extras: frozenset[str]) -> dict[str, str]:
    """Installed versions of everything that ``name`` with these extras requires, however far away."""
    found: dict[str, str] = {}
    todo = [(name, extras)]
    done: set[tuple[str, frozenset[str]]] = set()
    while todo:
        name, extras = todo.pop()
        if (name, extras) in done:
            continue
        done.add((name, extras))
        for text in importlib.metadata.requires(name) or ():
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras | {""}):
                other = canonicalize_name(requirement.name)
                found[other] = importlib.metadata.version(other).partition("+")[0]
                todo.append((other, frozenset(requirement.extras)))
    return found


def test_the_tested_set_pins_all_that_is_needed_and_nothing_else() -> None:
    found = needed("simic", frozenset({"dev", "redis"}))
    assert found == pinned()


def test_the_tested_set_names_no_local_builds_and_no_places() -> None:
    text = (ROOT / "constraints.txt").read_text()
    for line in text.splitlines():
        assert line.startswith("#") or re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line), line


def test_what_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {canonicalize_name(Requirement(text).name) for text in project["dependencies"]}
    extras = {name: {canonicalize_name(Requirement(text).name) for text in project["optional-dependencies"][name]}
              for name in set(OPTIONAL.values())}  # fmt: skip
    owners = importlib.metadata.packages_distributions()
    foreign = {
        name: sorted(tops)
        for name in SOURCES
        if (tops := {
            top
            for top in imported((ROOT / name).read_text())
            if top not in sys.stdlib_module_names
            and top not in PACKAGES
            and not (declared | extras.get(OPTIONAL.get(name) or OPTIONAL.get(name.rpartition("/")[0], ""), set()))
            & {canonicalize_name(owner) for owner in owners.get(top, ())}
        })
    }  # fmt: skip
    assert foreign == {}


def imported(source: str) -> set[str]:
    """Top-level names of all modules that a source imports, at whatever depth."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module.partition(".")[0])
    return names


def test_make_explains_every_target() -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    done = subprocess.run(["make"], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets is not None
    assert {line.split()[1] for line in done.stdout.splitlines()} == set(targets[1].split())


def test_cr07_no_file_grows_beyond_reading() -> None:
    assert {name: size for name in SOURCES if (size := (ROOT / name).read_text().count("\n")) > MAX_LINES} == {}


CALLED_FROM_OUTSIDE = {"simic/api/pyfunc.py": {"_load_pyfunc"}}
"""Private names that another library looks up: MLflow gives the loader of a model its name."""


def test_h7_nothing_private_is_written_and_never_read() -> None:
    found = {name: dead for name in SOURCES if (dead := written_only((ROOT / name).read_text()))}
    assert found == CALLED_FROM_OUTSIDE


def written_only(source: str) -> set[str]:
    """Private names of a module that are assigned or defined and never used in it; what is decorated counts as used."""
    written, read = set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            (read if isinstance(node.ctx, ast.Load) else written).add(node.attr)
        elif isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else written).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.decorator_list:
            written.add(node.name)
    return {name for name in written - read if name.startswith("_") and name.strip("_") and not name.endswith("__")}


def test_the_search_for_dead_names_finds_them() -> None:
    source = "_A = 1\n_B = _A\nclass C:\n    def _f(self): self._x = self._y = self._y\n"
    assert written_only(source) == {"_B", "_f", "_x"}


def test_the_index_of_decisions_lists_each_page_under_its_title() -> None:
    """A decision is found by its title: ``docs/adr/README.md`` has one row for each page, in order."""
    folder = ROOT / "docs" / "adr"
    rows = re.findall(r"^\| \[(\d+)\]\((.+)\) \| (.+) \|$", (folder / "README.md").read_text(), re.MULTILINE)
    titles = {page.name: page.read_text().partition("\n")[0] for page in sorted(folder.glob("0*.md"))}
    assert {name: f"# {number}. {title}" for number, name, title in rows} == titles
    assert [name for _, name, _ in rows] == list(titles)
