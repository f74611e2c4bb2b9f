"""Marks flow runs whose process died as Crashed, because the server still shows them as Running.

`simic up` runs this before it starts the worker, and shows what is written. A run holds a lock of its flow as long as
it lives, also when its worker was killed. So whoever holds the lock alone knows that every run of the flow that seems
to be running is dead.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowFilter, FlowFilterName, FlowRunFilter, FlowRunFilterState
from prefect.client.schemas.filters import FlowRunFilterStateType as StateTypes
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.states import Crashed

from simic.contracts.errors import BusyError, TransientError
from simic.runtime.home import Home, resolve_home
from simic.runtime.locks import exclusive, shared

__all__ = ["LOCKS", "crash_dead_runs", "living", "main"]

LOCKS = {"simic": "flow-simic", "collect": "flow-collect", "rollout": "flow-rollout"}
"""The lock of each flow, which all its runs share (``living``)."""
WAIT_S = 60.0
"""Seconds for which a run waits for a search for dead runs, which holds the lock alone and takes about one."""


@contextmanager
def living(home: Home, flow: str) -> Iterator[None]:
    """Hold the lock by which a run of a flow is known to be alive; others hold it too. The home is made first.

    It comes first in a flow: until then Prefect calls a run Running that a search for dead runs takes for dead.

    Raises:
        ConfigError: if the home cannot be made.
        TransientError: if a search for dead runs does not end.
    """
    home.create()
    with shared(home.locks / LOCKS[flow], f"the search for dead runs of {flow}", WAIT_S):
        yield


async def _crash_running(flow: str) -> list[FlowRun]:
    """Force every running run of a flow to Crashed, which also frees its deployment's slot."""
    live = FlowRunFilter(state=FlowRunFilterState(type=StateTypes(any_=[StateType.RUNNING, StateType.CANCELLING])))
    async with get_client() as client:
        runs = await client.read_flow_runs(
            flow_filter=FlowFilter(name=FlowFilterName(any_=[flow])), flow_run_filter=live
        )
        for run in runs:
            state: State[None] = Crashed(message="its process ended without reporting; give the same command again")
            await client.set_flow_run_state(run.id, state, force=True)
    return runs


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def crash_dead_runs(home: Home, say: Callable[[str], None] = _write) -> int:
    """Mark dead runs as Crashed and return their number; runs of a flow of which one is alive stay as they are."""
    count = 0
    for flow, lock in LOCKS.items():
        try:
            with exclusive(home.locks / lock, f"a run of the flow {flow}"):
                runs = asyncio.run(_crash_running(flow))
        except BusyError:
            say(f"no run of the flow {flow} is marked as Crashed, because one of them is alive")
            continue
        except TransientError as error:
            say(f"dead runs of the flow {flow} were not searched: {error}")
            continue
        for run in runs:
            say(f"run {run.name} ({run.id}) of the flow {flow} was dead and is now called Crashed")
        count += len(runs)
    return count


def main() -> None:
    """Entry point of ``python -m flows.crashed_runs``."""
    home = resolve_home()
    home.require()
    crash_dead_runs(home)


if __name__ == "__main__":
    main()
