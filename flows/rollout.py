"""Let the plan of a rollout decide, on the reports that have come back."""

from __future__ import annotations

from contextlib import ExitStack

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows.crashed_runs import living
from simic.app import data
from simic.app import rollout as rollouts
from simic.app.container import Container
from simic.contracts.errors import RolloutFailedError, RolloutWaitsError, TransientError
from simic.runtime.home import resolve_home
from simic.runtime.locks import exclusive
from simic.runtime.settings import load_profile

__all__ = ["rollout"]


@flow(name="rollout", flow_run_name="{profile}")
def rollout(profile: str = "nightly") -> State[None]:
    """Land the reports on the bus, then do what `simic rollout advance` does; nothing without a rollout in progress.

    The run ends as ``Advanced``, ``RolledBack``, ``Waiting`` or ``Published``, which tells production of a champion
    that changed meanwhile, or without a rollout as ``Idle``. It waits for the next hour while a run of the flow `simic`
    is in progress, which lands the reports itself. It fails if the bus or the registry cannot be reached; nothing is
    sent then, and the next run tries again.
    """
    home = resolve_home()
    with living(home, "rollout"):
        return _go_on(Container(home, load_profile(profile), 0))


def _go_on(container: Container) -> State[None]:
    if rollouts.status(container.home, container.clock()) is None:
        return Completed(name="Idle", message="no rollout is in progress")
    with ExitStack() as held:
        try:
            held.enter_context(exclusive(container.home.locks / "run", "a run of the flow"))
        except TransientError as error:
            return Completed(name="Waiting", message=str(error))
        data.ingest(container)
    return _advance(container)


def _advance(container: Container) -> State[None]:
    try:
        rollout_status, publication = rollouts.advance(container)
    except RolloutWaitsError as error:
        return Completed(name="Waiting", message=str(error))
    except RolloutFailedError as error:
        return Completed(name="RolledBack", message=str(error))
    if publication is None:
        return Completed(name="Idle", message="the rollout ended meanwhile")
    update = publication.update
    to = "all" if update.rollout is None else f"{update.rollout.share:.0%}"
    return Completed(
        name="Published" if rollout_status is None else "Advanced",
        message=f"{update.policy_name} {update.version} ({update.digest[:12]}) for {to} of the consumers",
    )
