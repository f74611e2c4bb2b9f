"""Starts a run of a deployment and follows it through Prefect's API, without loading Prefect."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from simic.cli.services.http import PrefectApi
from simic.cli.services.login import load_login
from simic.cli.services.processes import is_alive, read_record
from simic.cli.services.stack import WORKER, healthy_api, run_directory
from simic.contracts.base import Contract
from simic.contracts.errors import GateRejectedError, SimicError, TransientError
from simic.runtime.home import Home

__all__ = ["DeploymentRun", "raise_for_state", "run_deployment"]

POLL_S = 0.5
MOST_SILENT = 3
"""Polls in a row without an answer after which the server counts as gone."""
FINAL = frozenset({"COMPLETED", "FAILED", "CRASHED", "CANCELLED"})
_NOT_BEGUN = frozenset({"SCHEDULED", "PENDING"})
_KINDS: tuple[type[SimicError], ...] = (TransientError, *TransientError.__subclasses__())
_TRANSIENT = re.compile(rf"exception: ({'|'.join(kind.__name__ for kind in _KINDS)}):")
"""Prefect names the class of the exception that ended a run."""
_OCCUPIED = "concurrency limit"

Say = Callable[[str], None]


class DeploymentRun(Contract):
    """A finished run of a deployment."""

    deployment: str
    id: str
    name: str
    state: str
    """COMPLETED, FAILED, CRASHED or CANCELLED."""
    state_name: str
    """``Rejected`` for a completed run whose policy the gate rejected."""
    message: str
    url: str


def run_deployment(home: Home, deployment: str, parameters: Mapping[str, object], say: Say) -> DeploymentRun:
    """Start a run of ``<flow>/<deployment>`` and wait for its end; ``parameters`` replace those of the deployment.

    Raises:
        TransientError: if the services of `simic up` are not running, or end before the run has ended. A run that no
            worker has begun is cancelled then: nothing is left behind to start at some later time.
    """
    worker, api = read_record(run_directory(home), WORKER), healthy_api(home)
    if worker is None or api is None:
        missing = "the worker" if api is not None else "Prefect's server"
        raise TransientError(
            f"{missing} is not running in {home.root}; start the services with `simic up`, then repeat"
        )
    prefect = PrefectApi(api, load_login(home))
    registered = prefect.get(f"deployments/name/{deployment}")
    run = prefect.post(f"deployments/{registered['id']}/create_flow_run", {"parameters": dict(parameters)})
    url = f"{api.removesuffix('/api')}/runs/flow-run/{run['id']}"
    say(f"{deployment}: run {run['id']} at {url}")
    run = _follow(prefect, run, partial(is_alive, worker), say)
    state = run["state"]
    return DeploymentRun(
        deployment=deployment,
        id=run["id"],
        name=run["name"],
        state=state["type"],
        state_name=state["name"],
        message=state["message"] or "",
        url=url,
    )


def _follow(prefect: PrefectApi, run: Mapping[str, Any], is_served: Callable[[], bool], say: Say) -> Mapping[str, Any]:
    """Wait for the end of a run and return it; a server that is too busy to answer is asked again."""
    stages: set[str] = set()
    silent = 0
    while run["state_type"] not in FINAL:
        if not is_served():
            raise _abandoned(prefect, run)
        time.sleep(POLL_S)
        try:
            latest = prefect.get(f"flow_runs/{run['id']}")
            _say_stages(prefect, run["id"], stages, say)
            run, silent = latest, 0  # only now, so that a run that has ended is asked for its last stages again
        except TransientError:
            silent += 1
            if silent == MOST_SILENT:
                raise
    return run


def _say_stages(prefect: PrefectApi, run: str, said: set[str], say: Say) -> None:
    """Print each stage once, when it has ended."""
    task_runs = prefect.post("task_runs/filter", {"flow_runs": {"id": {"any_": [run]}}})
    ended = [stage for stage in task_runs if stage["state_type"] in FINAL and stage["id"] not in said]
    for stage in sorted(ended, key=lambda stage: str(stage["end_time"])):
        said.add(stage["id"])
        say(f"{stage['name']}: {stage['state_name']} after {stage['total_run_time']:.1f} s")


def _abandoned(prefect: PrefectApi, run: Mapping[str, Any]) -> TransientError:
    """Cancel a run that no worker has begun, leave a running one alone, and return the error for the user."""
    if run["state_type"] not in _NOT_BEGUN:
        return TransientError(
            f"the worker ended while run {run['id']} was {run['state_name']}; restart it with `simic up`"
        )
    cancelled = {"type": "CANCELLED", "message": "its worker ended before the run began"}
    prefect.post(f"flow_runs/{run['id']}/set_state", {"state": cancelled, "force": True})
    return TransientError(
        f"the worker ended before run {run['id']} began, so the run is cancelled; restart it with `simic up`"
    )


def raise_for_state(run: DeploymentRun) -> None:
    """Return if the run completed and promoted.

    Raises:
        GateRejectedError: if the gate rejected its policy.
        TransientError: if it failed for a transient reason, or another run held the deployment's only slot.
        SimicError: if it failed, crashed or was cancelled.
    """
    what = f"run {run.name} ({run.id}) ended {run.state_name}: {run.message or 'no message'}"
    if run.state == "COMPLETED":
        if run.state_name == "Rejected":
            raise GateRejectedError(run.message)
        return
    if _TRANSIENT.search(run.message):
        raise TransientError(f"{what}; the same command resumes it")
    if run.state == "CANCELLED" and _OCCUPIED in run.message.lower():
        raise TransientError(f"{what}; another run of {run.deployment} is active, try again when it has ended")
    raise SimicError(f"{what}; its log is at {run.url}")
