"""Controllers by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from simic.contracts.controllers import ControllerSpec, Plan
from simic.contracts.errors import ConfigError
from simic.controllers.factory import make
from simic.controllers.plugins import CONTROLLERS


@pytest.mark.parametrize("name", ["wait", "random", "explore", "complete", "heuristic", "schedule", "expert"])
def test_every_name_makes_the_controller_that_reports_it(name: str) -> None:
    controller = make(ControllerSpec(name=name, plan=Plan()), [])
    assert controller.name == name
    assert controller.policy_version is None
    assert name in CONTROLLERS.names()


def test_an_unknown_name_is_met_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown controller 'heuristics'.*Did you mean 'heuristic'"):
        make(ControllerSpec(name="heuristics"), [])


def test_learned_is_never_made_without_a_checked_seal(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs policy_path"):
        make(ControllerSpec(name="learned"), [])
    with pytest.raises(ConfigError, match="needs keyring_path"):
        make(ControllerSpec(name="learned", policy_path=str(tmp_path)), [])


def test_scripted_controllers_do_not_load_torch() -> None:
    code = (
        "import sys; from simic.controllers.factory import make; from simic.contracts.controllers import *;"
        "names = ('wait', 'random', 'explore', 'heuristic', 'schedule', 'expert');"
        "[make(ControllerSpec(name=name, plan=Plan()), []) for name in names];"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
