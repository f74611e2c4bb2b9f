"""Names come from files and entry points, and cost no torch."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from support.builders.ensembles import ensemble

from simic.contracts.errors import ConfigError
from simic.hosts import plugins as catalogue
from simic.hosts.host_sets import SETS
from simic.runtime import plugin_folder


def test_names_are_known_without_torch() -> None:
    program = (
        "import sys; from simic.hosts.plugins import blueprint_names, family_names;"
        "print(*blueprint_names(), *family_names()); assert 'torch' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == [
        *(
            "attention",
            "bottleneck",
            "conv3x3",
            "dense",
            "depthwise",
            "dropout",
            "gate",
            "heavy",
            "low_rank",
            "norm",
            "widen",
        ),
        *sorted(
            {
                *SETS["compound"].families,
                *SETS["images"].families,
                *SETS["varied"].families,
                *SETS["trunks"].families,
                *SETS["shapes"].families,
                *SETS["maps"].families,
            }
        ),
    ]


@pytest.mark.parametrize("load", [catalogue.load_blueprint, catalogue.load_family, catalogue.load_trunk])
def test_cr_1_an_unknown_name_raises_and_lists_what_is_known(load) -> None:
    with pytest.raises(ConfigError, match=r"unknown (blueprint|host family|trunk) 'nrom'; known: .*(norm|noisy|mlp)"):
        load("nrom")


def test_installed_blueprints_come_behind_and_cannot_shadow(monkeypatch: pytest.MonkeyPatch) -> None:
    points = {
        name: EntryPoint(name, "simic.hosts.blueprints.gate:BLUEPRINT", "simic.blueprints")
        for name in ("another", "norm")
    }
    monkeypatch.setattr(plugin_folder, "_installed", lambda group: points if group == "simic.blueprints" else {})
    catalogue._names.cache_clear()
    catalogue._load.cache_clear()
    try:
        assert catalogue.blueprint_names() == (*plugin_folder._shipped("simic.hosts.blueprints"), "another")
        assert type(catalogue.load_blueprint("another")).__name__ == "Gate"
        assert type(catalogue.load_blueprint("norm")).__name__ == "Norm"
    finally:
        monkeypatch.undo()
        catalogue._names.cache_clear()
        catalogue._load.cache_clear()


def test_an_installed_trunk_is_found_by_the_name_of_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("other", "simic.hosts.trunks.cnn:TRUNK", "simic.host_trunks")
    monkeypatch.setattr(
        plugin_folder, "_installed", lambda group: {"other": point} if group == "simic.host_trunks" else {}
    )
    catalogue._load.cache_clear()
    try:
        assert catalogue.load_trunk("other").__name__ == "CnnTrunk"
    finally:
        catalogue._load.cache_clear()


@pytest.mark.parametrize("value", ["no_such_module:BLUEPRINT", "simic.hosts.blueprints.gate:BLUPRINT"])
def test_an_entry_point_that_leads_nowhere_is_a_configuration_error(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = EntryPoint("mine", value, "simic.blueprints")
    monkeypatch.setattr(plugin_folder, "_installed", lambda group: {"mine": point} if group == point.group else {})
    with pytest.raises(ConfigError, match=f"entry point simic.blueprints:mine = {value} cannot be loaded"):
        catalogue._load.__wrapped__(catalogue._BLUEPRINTS, "mine")


def test_a_plug_in_that_fails_names_itself_and_harms_only_those_who_want_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_plugin.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("mine", "broken_plugin:BLUEPRINT", "simic.blueprints")
    monkeypatch.setattr(plugin_folder, "_installed", lambda group: {"mine": point} if group == point.group else {})
    for name in ("_names", "_load"):
        monkeypatch.setattr(catalogue, name, getattr(catalogue, name).__wrapped__)
    with pytest.raises(ConfigError, match=r"entry point simic\.blueprints:mine = broken_plugin:BLUEPRINT.*division"):
        catalogue.load_blueprint("mine")
    assert not ensemble([1]).masks().blueprint[0, catalogue.blueprint_names().index("mine")]
