"""Everything is wired: modules are reached, settings are read, public names are used."""

from __future__ import annotations

import ast
import dataclasses
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest
from draw_architecture import ROOT, import_graph
from pydantic import BaseModel
from support.checks.code_search import parsed, reached, unread_fields, unused_definitions

from simic.contracts.rewards import FAMILIES
from simic.contracts.settings.run import RunConfig
from simic.runtime.home import Home

SCALE_OUT = "the issue that adds actors on several machines"

PLUGINS = {
    "simic.bus.plugins": "simic.bus.factory",
    "simic.controllers.plugins": "simic.controllers.factory",
    "simic.hosts.blueprints": "simic.hosts.plugins",
    "simic.hosts.families": "simic.hosts.plugins",
    "simic.hosts.trunks": "simic.hosts.plugins",
    "simic.learning.objectives": "simic.learning.training_run",
    "simic.replay.exports": "simic.app.data",
    "simic.validation.criteria": "simic.validation.promotion_gate",
}
"""Folders whose files are found by name, and the module that looks for them."""

MODULES_TO_WIRE = {
    "simic.replay.live.buffer": SCALE_OUT,
    "simic.replay.live.storage": SCALE_OUT,
}
"""Finished modules that no verb, flow or plug-in folder reaches yet, and the issue that wires them."""

NAMES_TO_WIRE = {
    "simic.replay.live.buffer.LiveBuffer": SCALE_OUT,
    "simic.replay.live.buffer.LiveBuffer.stale_updates": SCALE_OUT,
}
"""Public names that only tests use yet, and the issue that gives them a use."""

HOOKS = re.compile(r"simic\.integrations\..*\.(on_\w+|setup|teardown)$")
"""Methods of callbacks, which the trainers of other libraries call."""

KEYS_TO_WIRE = {
    "ReplayConfig.capacity": SCALE_OUT,
    "ReplayConfig.ttl_s": SCALE_OUT,
}
"""Configuration keys that no reached module reads yet, and the issue that makes them effective."""


def entries() -> set[str]:
    """Return the modules that somebody starts or imports: the command, ``-m simic``, deployments, integrations."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    commands = {target.partition(":")[0] for target in project["scripts"].values()}
    deployed = re.findall(r"entrypoint: ([\w/]+)\.py:", (ROOT / "prefect.yaml").read_text("utf-8"))
    imported = {name for name in parsed() if name.startswith("simic.integrations.")}
    return {"simic.__main__", *commands, *imported, *(path.replace("/", ".") for path in deployed)}


@cache
def reached_here() -> frozenset[str]:
    return frozenset(reached(entries(), PLUGINS))


def reached_trees(*left_out: str) -> dict[str, ast.Module]:
    return {name: parsed()[name] for name in reached_here() - set(left_out)}


def sections() -> dict[str, dict[str, str]]:
    """Return the fields of every model nested in ``RunConfig``, with the name of the model that each holds."""
    found: dict[str, dict[str, str]] = {}
    todo: list[type[BaseModel]] = [RunConfig]
    while todo:
        model = todo.pop()
        kinds = {name: field.annotation for name, field in model.model_fields.items()}
        nested = {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, BaseModel)}
        found[model.__name__] = {name: nested[name].__name__ if name in nested else "" for name in kinds}
        todo += nested.values()
    return found


def config_properties() -> dict[str, dict[str, set[str]]]:
    """Return what each property of a configuration model reads."""
    models = [node for node in parsed()["simic.contracts.settings.run"].body if isinstance(node, ast.ClassDef)]
    return {
        model.name: {
            node.name: {inner.attr for inner in ast.walk(node) if isinstance(inner, ast.Attribute)}
            for node in model.body
            if isinstance(node, ast.FunctionDef) and "property" in map(ast.unparse, node.decorator_list)
        }
        for model in models
    }


def test_every_module_is_reached_from_a_verb_a_flow_or_a_plugin_folder() -> None:
    assert set(parsed()) - reached_here() == set(MODULES_TO_WIRE), "wire it, remove it, or strike it from the list"


def test_every_configuration_key_is_read() -> None:
    unread = unread_fields(sections(), config_properties(), reached_trees("simic.contracts.settings.run"))
    assert unread == set(KEYS_TO_WIRE)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_constant_of_a_reward_family_is_a_parameter_of_its_sql(family: str) -> None:
    text = (ROOT / "simic/curation/sql/rewards" / f"{family}.sql").read_text("utf-8")
    named = set(re.findall(r"\$([a-z_]+)", text))
    assert set(FAMILIES[family].model_fields) - {"family"} <= named


def test_every_place_of_a_home_is_used() -> None:
    places = {field.name for field in dataclasses.fields(Home)}
    places |= {name for name, value in vars(Home).items() if isinstance(value, property) and not name.startswith("_")}
    elsewhere = reached_trees("simic.runtime.home")
    assert unread_fields({"Home": dict.fromkeys(places, "")}, {}, elsewhere) == set()


def test_no_public_name_is_used_by_tests_only() -> None:
    unused = {name for name in unused_definitions(parsed(), documented()) if not HOOKS.match(name)}
    assert unused == set(NAMES_TO_WIRE), "use it, remove it, or strike it"


def documented() -> set[str]:
    """Return the names that pages for users show as code."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.md")]
    spans = [span for page in pages for span in re.findall(r"```.*?```|`[^`\n]+`", page.read_text("utf-8"), re.DOTALL)]
    return {name for span in spans for name in re.findall(r"[A-Za-z_]\w*", span)}


def test_what_waits_for_an_issue_names_it() -> None:
    for waiting in (MODULES_TO_WIRE, NAMES_TO_WIRE, KEYS_TO_WIRE):
        assert set(waiting.values()) <= {SCALE_OUT}
        assert list(waiting) == sorted(waiting)


SOURCE = """
class Limits:
    rows: int
    files: int
class Other:
    rows: int
class Job:
    def __init__(self, limits: Limits | None, other: "Other") -> None:
        self._limits, self.other = limits, other
    def run(self) -> Limits:
        return self._limits.rows
def read(job: Job) -> int:
    limits = job.run()
    return limits.files + job.other.rows
def unused() -> None:
    unused()
class Unused:
    def method(self) -> None: ...
def main() -> None:
    read(Job(None, getattr(Unused, "by_name")))
"""


def test_the_search_knows_which_section_a_field_belongs_to() -> None:
    fields = {"Limits": {"rows": "", "files": ""}, "Other": {"rows": "", "files": ""}}
    tree = ast.parse(SOURCE)
    assert unread_fields(fields, {}, {"m": tree}) == {"Other.files"}
    without = ast.parse(SOURCE.replace("self._limits.rows", "self._limits"))
    assert unread_fields(fields, {}, {"m": without}) == {"Limits.rows", "Other.files"}
    derived = {"Other": {"size": {"files"}}}
    assert unread_fields(fields, derived, {"m": ast.parse(SOURCE.replace("other.rows", "other.size"))}) == {
        "Other.rows"
    }


def test_the_search_finds_what_nothing_uses() -> None:
    found = unused_definitions({"m": ast.parse(SOURCE)})
    assert found == {"m.unused", "m.Unused.method", "m.main"}
    assert unused_definitions({"m": ast.parse(SOURCE), "n": ast.parse("from m import main, unused")}) == {
        "m.Unused.method"
    }
    assert unused_definitions({"m": ast.parse(SOURCE)}, {"main", "unused", "method"}) == set()


def test_the_search_follows_imports_strings_and_plugin_folders(tmp_path: Path) -> None:
    sources = {
        "simic": "",
        "simic.main": "def f():\n    from simic import late\n    run('simic.worker')",
        "simic.late": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from simic import typed",
        "simic.worker": "import simic.plugins",
        "simic.plugins": "",
        "simic.folder": "",
        "simic.folder.one": "",
        "simic.typed": "",
        "simic.prose": "",
        "simic.exported": "",
    }
    for name, source in sources.items():
        path = tmp_path.joinpath(*name.split("."))
        is_package = any(other.startswith(f"{name}.") for other in sources)
        path = path / "__init__.py" if is_package else path.with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    trees = {name: ast.parse(source) for name, source in sources.items()}
    graph = import_graph(tmp_path)
    found = reached({"simic.main"}, {"simic.folder": "simic.plugins"}, graph, trees)
    assert set(sources) - found == {"simic.typed", "simic.prose", "simic.exported"}
