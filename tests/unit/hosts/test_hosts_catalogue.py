"""Names come from files and entry points, and cost no torch."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from simic.contracts.errors import ConfigError
from simic.hosts import catalogue


def test_names_are_known_without_torch() -> None:
    program = (
        "import sys; from simic.hosts.catalogue import blueprint_names, family_names;"
        "print(*blueprint_names(), *family_names()); assert 'torch' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == [
        *("bottleneck", "conv3x3", "dense", "depthwise", "dropout", "gate", "heavy", "low_rank", "norm"),
        *("both", "cap", "fine", "gain", "match", "noisy", "select"),
    ]


def test_the_world_digest_is_that_of_the_sources_and_costs_no_torch() -> None:
    program = (
        "import sys; from simic.hosts.catalogue import world_digest; print(world_digest());"
        "assert 'torch' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == catalogue.world_digest()
    assert len(catalogue.world_digest()) == 64


@pytest.mark.parametrize("seen", ["code", "plug-in"])
def test_another_source_or_plug_in_is_another_world(seen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here = catalogue.world_digest.__wrapped__()
    if seen == "code":
        monkeypatch.setattr(catalogue, "tree_digest", lambda root, packages: f"{root.name}/{packages}")
    else:
        point = EntryPoint("another", "elsewhere:BLUEPRINT", "simic.blueprints")
        monkeypatch.setattr(catalogue, "_installed", lambda group: {"another": point} if group in point.group else {})
    assert catalogue.world_digest.__wrapped__() != here
    assert catalogue.world_digest() == here


@pytest.mark.parametrize("load", [catalogue.load_blueprint, catalogue.load_family, catalogue.load_trunk])
def test_cr_1_an_unknown_name_raises_and_lists_what_is_known(load) -> None:
    with pytest.raises(ConfigError, match=r"unknown name 'nrom'.*(norm|noisy|mlp)"):
        load("nrom")


def test_installed_blueprints_come_behind_and_cannot_shadow(monkeypatch: pytest.MonkeyPatch) -> None:
    points = {
        name: EntryPoint(name, "simic.hosts.blueprints.gate:BLUEPRINT", "simic.blueprints")
        for name in ("another", "norm")
    }
    monkeypatch.setattr(catalogue, "_installed", lambda group: points if group == "simic.blueprints" else {})
    catalogue._names.cache_clear()
    catalogue._load.cache_clear()
    try:
        assert catalogue.blueprint_names() == (*catalogue._own("blueprints"), "another")
        assert type(catalogue.load_blueprint("another")).__name__ == "Gate"
        assert type(catalogue.load_blueprint("norm")).__name__ == "Norm"
    finally:
        monkeypatch.undo()
        catalogue._names.cache_clear()
        catalogue._load.cache_clear()


@pytest.mark.parametrize("value", ["no_such_module:BLUEPRINT", "simic.hosts.blueprints.gate:BLUPRINT"])
def test_an_entry_point_that_leads_nowhere_is_a_configuration_error(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = EntryPoint("mine", value, "simic.blueprints")
    monkeypatch.setattr(catalogue, "_installed", lambda group: {"mine": point} if group == point.group else {})
    with pytest.raises(ConfigError, match=f"entry point simic.blueprints:mine = {value} cannot be loaded"):
        catalogue._load.__wrapped__("mine", *catalogue._BLUEPRINTS)
