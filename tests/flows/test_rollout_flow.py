"""The hourly flow of a rollout on a real Prefect server."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import State
from support.homes.champion_homes import FORMER, PRESENT, crowned_home
from support.homes.rollouts import RollingOut

from flows.rollout import rollout
from simic.app import promotion
from simic.app.container import Container
from simic.runtime.locks import exclusive

pytestmark = pytest.mark.usefixtures("prefect_server")


@pytest.fixture
def setting(home: Path, tmp_path_factory: pytest.TempPathFactory) -> RollingOut:
    return RollingOut(crowned_home(home, tmp_path_factory))


def ended() -> State[Any]:
    return rollout(profile="quick", return_state=True)


def test_each_hour_ends_as_the_plan_says(setting: RollingOut) -> None:
    waiting = ended()
    assert waiting.is_completed() and waiting.name == "Waiting"
    assert "insufficient evidence, no whole episode" in str(waiting.message)
    with exclusive(setting.home.locks / "run", "a run"):
        assert (ended().name, setting.updates()) == ("Waiting", 2)
    setting.report(30)
    assert ended().name == "Waiting", "its hours are not over"
    setting.report(0, bad=90, first=100)
    failed = ended()
    assert failed.is_completed() and failed.name == "RolledBack"
    assert "failing, 30 of 120" in str(failed.message)
    assert setting.champion() == FORMER != PRESENT
    assert ended().name == "Idle"


def test_a_champion_that_production_has_not_heard_of_is_published_and_not_called_advanced(setting: RollingOut) -> None:
    promotion.roll_back(setting.container, "by hand, and not published")
    told = ended()
    assert (told.name, setting.champion()) == ("Published", FORMER)
    assert "for all of the consumers" in str(told.message)
    assert (ended().name, setting.updates()) == ("Idle", 3)


def test_a_rollout_whose_hours_are_over_advances(setting: RollingOut, monkeypatch: pytest.MonkeyPatch) -> None:
    setting.report(40)
    setting.ahead = timedelta(hours=25)
    monkeypatch.setattr("flows.rollout.Container", partial(Container, clock=setting.now))
    done = ended()
    assert (done.name, setting.champion()) == ("Advanced", PRESENT)
    assert "1.0.1" in str(done.message) and "for all of the consumers" in str(done.message)
