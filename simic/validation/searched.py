"""Arms that search on the very host: several episodes grow on it, and the one with the best return is taken.

The return ends with the validation accuracy, and the best of several is better there than it is. So these arms are
scored by the return with the test accuracy in its place, which chose nothing.
Shapes: N hosts, M episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simic.contracts.controllers import ControllerSpec
from simic.contracts.names import WAIT
from simic.contracts.settings.run import WorldConfig
from simic.contracts.state import HostIdentity
from simic.controllers.branching import Action, BranchingController, candidate_actions, may_branch
from simic.controllers.factory import make
from simic.controllers.protocol import Controller
from simic.hosts.rollout import Step
from simic.validation.baselines.candidates import single_seeds_of
from simic.validation.episodes import Episodes, TrialJob, join, run_episodes, run_with

__all__ = ["grow"]


def grow(job: TrialJob) -> Episodes:
    """Run all episodes of a job; an arm of ``SEARCHED`` returns the best episode of each host.

    ``effort`` is that of all episodes that were grown on the host; everything else is that of the best one.
    """
    search = _SEARCHES.get(job.spec.name)
    return run_episodes(job) if search is None else search(job)


def _hindsight(job: TrialJob) -> Episodes:
    """Grow never, and every plan of one seed; these are the plans of ``simic plans headroom``."""
    plans = [ControllerSpec(name="schedule", plan=plan) for plan in single_seeds_of(job.world)]
    tried = [run_episodes(replace(job, spec=spec)) for spec in (ControllerSpec(name=WAIT), *plans)]
    return _best(join(tried), np.tile(np.arange(len(job.hosts)), len(tried)))


def _simulate(job: TrialJob) -> Episodes:
    """Grow ``complete``, and every other action at the first decision that can be branched, ended by ``complete``.

    A branch repeats its parent up to that decision. Hosts and controllers are deterministic, so it equals a simulation
    that starts from the state of the decision.
    """
    noted = _Noted()
    parent = run_episodes(replace(job, spec=_COMPLETE, reporter=noted))
    tried, rows = [parent], [np.arange(len(job.hosts))]
    # Sorted by action: hosts of one chunk then share a blueprint and a slot, which trains fastest.
    branches = sorted(noted.branches(), key=lambda branch: (branch[2], branch[1], branch[0]))
    for start in range(0, len(branches), job.world.chunk):
        of, steps, actions = zip(*branches[start : start + job.world.chunk], strict=True)
        hosts = tuple(job.hosts[row] for row in of)
        controller = BranchingController(make(_COMPLETE, hosts), steps, actions)
        tried.append(run_with(controller, replace(job, spec=_COMPLETE, hosts=hosts)))
        rows.append(np.array(of))
    return _best(join(tried), np.concatenate(rows))


_COMPLETE = ControllerSpec(name="complete")
_SEARCHES: Mapping[str, Callable[[TrialJob], Episodes]] = {"simulate": _simulate, "hindsight": _hindsight}


class _Noted:
    """Takes the steps of the parents."""

    def __init__(self) -> None:
        self._steps: Sequence[Step] = ()

    def __call__(
        self,
        arm: str,  # noqa: ARG002
        controller: Controller,  # noqa: ARG002
        hosts: Sequence[HostIdentity],  # noqa: ARG002
        world: WorldConfig,  # noqa: ARG002
        steps: Sequence[Step],
        is_legal: NDArray[np.bool_],  # noqa: ARG002
    ) -> None:
        self._steps = steps

    def branches(self) -> list[tuple[int, int, Action]]:
        """Return (host, step, action): the other actions at the first decision of each host that can be branched."""
        branches, done = [], set[int]()
        for step in self._steps:
            for row in np.flatnonzero(step.live).tolist():
                if row not in done and may_branch(step.epoch, step.masks, row):
                    done.add(row)
                    taken = tuple(step.decisions.actions[row].tolist())
                    tried = candidate_actions(step.masks, step.observations.slot_ptr, row)
                    branches += [(row, step.epoch, action) for action in tried if action != taken]
        return branches


def _best(tried: Episodes, rows: NDArray[np.int64]) -> Episodes:
    """Return the episode with the best return of each host; of equal ones the first. ``rows`` [M] are their hosts."""
    order = np.lexsort((-tried.returns, rows))  # a stable sort
    chosen = order[np.searchsorted(rows[order], np.arange(rows.max() + 1))]
    effort = np.zeros_like(tried.effort[chosen])
    np.add.at(effort, rows, tried.effort)
    return replace(tried.take(chosen), effort=effort)
