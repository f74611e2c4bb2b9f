"""Plug-in folders: names without imports, and errors that name the package that caused them."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest

from simic.contracts.errors import ConfigError
from simic.controllers.plugins import CONTROLLERS
from simic.replay.exports import EXPORTS
from simic.runtime import plugin_folder


@pytest.mark.parametrize("folder", [CONTROLLERS, EXPORTS])
def test_every_shipped_module_has_the_agreed_attributes(folder: plugin_folder.PluginFolder) -> None:
    for name, summary in folder.summaries().items():
        module = folder.load(name)
        assert getattr(module, folder.attributes[0]) == name
        assert all(hasattr(module, attribute) for attribute in folder.attributes)
        assert summary == module.SUMMARY and len(summary.split()) >= 4


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> dict[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    monkeypatch.setattr(plugin_folder, "_installed", lambda group: found if group == "simic.controllers" else {})
    return found


def test_installed_names_come_behind_and_cannot_shadow(points: dict[str, EntryPoint]) -> None:
    for name in ("another", "wait"):
        points[name] = EntryPoint(name, "simic.controllers.plugins.random", "simic.controllers")
    assert CONTROLLERS.names()[-1] == "another" and CONTROLLERS.names().count("wait") == 1
    assert CONTROLLERS.load("wait").NAME == "wait"


def test_an_entry_point_that_cannot_be_used_is_named(
    points: dict[str, EntryPoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = ModuleType("scratch_empty")
    monkeypatch.setitem(sys.modules, "scratch_empty", empty)
    points["missing"] = EntryPoint("missing", "no_such_module", "simic.controllers")
    points["empty"] = EntryPoint("empty", "scratch_empty", "simic.controllers")
    points["renamed"] = EntryPoint("renamed", "simic.controllers.plugins.wait", "simic.controllers")
    with pytest.raises(ConfigError, match=r"simic.controllers:missing = no_such_module cannot be loaded"):
        CONTROLLERS.load("missing")
    with pytest.raises(ConfigError, match=r"empty = scratch_empty: expected a module with NAME, SUMMARY, make"):
        CONTROLLERS.load("empty")
    with pytest.raises(ConfigError, match=r"expected NAME = 'renamed', found 'wait'"):
        CONTROLLERS.load("renamed")
