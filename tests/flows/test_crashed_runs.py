"""Runs of every flow whose process was killed, and runs that are alive, on a real Prefect server."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect import Flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowFilter, FlowFilterName
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.runtime import flow_run
from support.fakes import stages as fake_stages
from support.servers.flow_runs import FlowRuns

import flows
from flows.collect import collect
from flows.crashed_runs import LOCKS, crash_dead_runs, living
from flows.retrain import simic
from flows.rollout import rollout
from simic.contracts.errors import ConfigError
from simic.runtime.home import Home
from simic.runtime.locks import exclusive

pytestmark = pytest.mark.usefixtures("prefect_server")

KILLED = """
import os, signal, sys
import pytest
from flows.collect import collect
from flows.rollout import rollout

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

patch = pytest.MonkeyPatch()
patch.setattr("simic.app.rollout.status", lambda *_: "in progress")
patch.setattr("simic.app.data.ingest", lambda _: None)
patch.setattr("simic.app.rollout.advance", die)
patch.setattr("simic.app.training.collect", die)
{flow}(profile="quick")
"""


def states(flow: str) -> dict[UUID, StateType | None]:
    """The runs of a flow and their states."""
    with get_client(sync_client=True) as client:
        found = client.read_flow_runs(flow_filter=FlowFilter(name=FlowFilterName(any_=[flow])))
    return {run.id: run.state_type for run in found}


def running(flow: str) -> set[UUID]:
    return {run for run, state in states(flow).items() if state is StateType.RUNNING}


def test_every_flow_has_a_lock_by_which_its_runs_are_known_to_be_alive() -> None:
    modules = [importlib.import_module(f"flows.{found.name}") for found in pkgutil.iter_modules(flows.__path__)]
    assert {value.name for module in modules for value in vars(module).values() if isinstance(value, Flow)} == set(
        LOCKS
    )


@pytest.mark.parametrize("flow", LOCKS)
def test_a_killed_run_is_called_crashed(home: Path, flow_runs: FlowRuns, flow: str) -> None:
    before = running(flow)
    if flow == "simic":
        flow_runs.kill_at("train 1")
    else:
        flow_runs.kill(KILLED.format(flow=flow))
    (killed,) = running(flow) - before
    assert crash_dead_runs(Home(home)) >= 1
    assert running(flow) == set()
    assert states(flow)[killed] is StateType.CRASHED
    assert crash_dead_runs(Home(home)) == 0


class Looked(Exception):
    """The run has been looked at."""


@pytest.mark.parametrize(
    ("flow", "inner"),
    [
        (simic, "simic.app.runs.load_profile"),
        (simic, "simic.app.training.collect_round"),
        (collect, "flows.collect.load_profile"),
        (collect, "simic.app.training.collect"),
        (rollout, "flows.rollout.load_profile"),
        (rollout, "simic.app.rollout.advance"),
    ],
)
def test_a_run_that_is_alive_stays_running(
    home: Path, monkeypatch: pytest.MonkeyPatch, flow: Callable[..., Any], inner: str
) -> None:
    """The search happens in the midst of the run, or before it has read its settings."""
    told: list[str] = []

    def look(*_: object) -> None:
        crash_dead_runs(Home(home), told.append)
        assert UUID(flow_run.id) in running(str(flow_run.flow_name))
        raise Looked

    fake_stages.install(monkeypatch, has_registry=False)
    monkeypatch.setattr("simic.app.rollout.status", lambda *_: "in progress")
    monkeypatch.setattr(inner, look)
    with pytest.raises(Looked):
        flow(profile="quick")
    assert "because one of them is alive" in "".join(told)


def test_a_search_does_not_hold_the_lock_by_which_runs_exclude_each_other(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    async def meet_a_run(flow: str) -> list[FlowRun]:
        with exclusive(Home(home).locks / "run", "a run of the flow"):
            begun.append(flow)
        return []

    monkeypatch.setattr("flows.crashed_runs._crash_running", meet_a_run)
    assert crash_dead_runs(Home(home)) == 0
    assert begun == [*LOCKS]


def test_a_search_tells_a_lock_that_it_cannot_open_from_a_run_that_is_alive(home: Path) -> None:
    own, told = Home(home), list[str]()
    own.create()
    (own.locks / LOCKS["collect"]).mkdir()
    with living(own, "rollout"):
        crash_dead_runs(own, told.append)
    about = {flow: [line for line in told if f"the flow {flow} " in line] for flow in LOCKS}
    (collects,), (rollouts,) = about["collect"], about["rollout"]
    assert "were not searched: cannot lock" in collects and "check space and permissions" in collects
    assert rollouts == "no run of the flow rollout is marked as Crashed, because one of them is alive"


@pytest.mark.parametrize("flow", [simic, collect, rollout])
def test_a_flow_makes_its_home_before_its_lock(
    home: Path, monkeypatch: pytest.MonkeyPatch, flow: Callable[..., Any]
) -> None:
    def end(*_: object) -> None:
        raise Looked

    for module in ("simic.app.runs", "flows.collect", "flows.rollout"):
        monkeypatch.setattr(f"{module}.load_profile", end)
    with pytest.raises(Looked):
        flow(profile="quick")
    assert (home / "data" / ".gitignore").read_text() == "*\n"


@pytest.mark.parametrize("flow", [simic, collect, rollout])
def test_a_home_that_cannot_be_is_an_error_of_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flow: Callable[..., Any]
) -> None:
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("SIMIC_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="cannot make a home at"):
        flow(profile="quick")
