"""The narrow networks of the examples: their comparison runs, and a seed that widens one raises its accuracy."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from support.builders.ensembles import action, step_with
from support.fakes.custom_hosts import grown_modules, install

from simic.contracts.actions import Op
from simic.hosts.plugins import blueprint_names

EXAMPLE = Path(__file__).parents[2] / "examples" / "narrow_nets"
WIDEN = blueprint_names().index("widen")


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """``compare.py``, with the package's families known by the names of its entry points."""
    monkeypatch.setenv("SIMIC_HOME", str(tmp_path))
    monkeypatch.syspath_prepend(str(EXAMPLE))
    for name in ("narrow_nets", "compare"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    networks = import_module("narrow_nets")
    install(monkeypatch, {"narrow_cnn": networks.CNN, "narrow_mlp": networks.MLP})
    return import_module("compare")


def test_every_seed_is_compared_with_never_growing(compare: ModuleType) -> None:
    report = compare.compare("narrow_mlp", hosts=2, epochs=4, workers=1)
    names = {row.controller for row in report.controllers}
    assert names >= {"wait", "widen 0", "widen 1", "dense 0"}
    assert len(names) == 1 + 2 * 7


@pytest.mark.usefixtures("compare")
def test_a_seed_that_widens_raises_the_accuracy_of_a_narrow_network() -> None:
    alone, wider = grown_modules([1, 2], 12, "narrow_mlp"), grown_modules([1, 2], 12, "narrow_mlp")
    for epoch in range(12):
        step_with(alone)
        step_with(wider, *([action(Op.GERMINATE, slot=1, blueprint=WIDEN)] * 2 if epoch == 1 else []))
    gains = wider.observe().system["validation_accuracy"] - alone.observe().system["validation_accuracy"]
    assert gains.mean() > 0.05
