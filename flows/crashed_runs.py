"""Marks flow runs whose process died as Crashed, because the server still shows them as Running.

`simic up` runs this before it starts the worker. A run holds the run lock as long as it lives, so whoever holds the
lock knows that every run of this flow that seems to be running is dead.
"""

from __future__ import annotations

import asyncio
import logging

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowFilter, FlowFilterName, FlowRunFilter, FlowRunFilterState
from prefect.client.schemas.filters import FlowRunFilterStateType as StateTypes
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.states import Crashed

from simic.contracts.errors import TransientError
from simic.runtime.home import Home, resolve_home
from simic.runtime.locks import exclusive

__all__ = ["crash_dead_runs", "main"]

_LOG = logging.getLogger("simic.doctor")
FLOW = "simic"


async def _crash_running() -> list[FlowRun]:
    """Force every running run of the flow to Crashed, which also frees its deployment's slot."""
    live = FlowRunFilter(state=FlowRunFilterState(type=StateTypes(any_=[StateType.RUNNING, StateType.CANCELLING])))
    async with get_client() as client:
        runs = await client.read_flow_runs(
            flow_filter=FlowFilter(name=FlowFilterName(any_=[FLOW])), flow_run_filter=live
        )
        for run in runs:
            state: State[None] = Crashed(message="its process ended without reporting; the same command resumes it")
            await client.set_flow_run_state(run.id, state, force=True)
    return runs


def crash_dead_runs(home: Home) -> int:
    """Mark dead runs as Crashed and return their number; change nothing while a run of the flow is alive."""
    try:
        with exclusive(home.locks / "run", "a run of the flow"):
            runs = asyncio.run(_crash_running())
    except TransientError:
        return 0
    for run in runs:
        _LOG.warning("run %s (%s) was dead and is now called Crashed", run.name, run.id)
    return len(runs)


def main() -> None:
    """Entry point of ``python -m flows.crashed_runs``."""
    crash_dead_runs(resolve_home())


if __name__ == "__main__":
    main()
