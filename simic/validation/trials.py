"""Closed-loop trials: every controller grows the same hosts through the same code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from simic.contracts.config import RewardConfig, TrialConfig, WorldConfig
from simic.contracts.controllers import ControllerSpec
from simic.contracts.errors import ConfigError
from simic.contracts.receipts import ControllerTrial, Estimate, FamilyTrial, Provenance, TrialReport
from simic.contracts.state import HostIdentity
from simic.runtime.clock import Clock
from simic.runtime.parallel import run_jobs, worker_count
from simic.runtime.seeds import derive
from simic.validation.episodes import Episodes, TrialJob, chunked, grow, join
from simic.validation.estimates import paired_estimate
from simic.validation.table import Table, render_families, render_table

__all__ = ["WAIT", "Table", "render_families", "render_table", "run_trials", "trial_seed"]

WAIT = "wait"
OnDone = Callable[[Episodes], None]


def run_trials(
    specs: Mapping[str, ControllerSpec],
    hosts: Sequence[HostIdentity],
    world: WorldConfig,
    config: TrialConfig,
    reward: RewardConfig,
    *,
    provenance: Provenance,
    clock: Clock,
    on_done: OnDone | None = None,
    plans_digest: str | None = None,
) -> TrialReport:
    """Grow ``hosts`` under every controller of ``specs`` (row name -> spec) and under ``wait``, paired by host.

    ``on_done`` sees each finished chunk. ``plans_digest`` names the plan book behind ``blind`` and ``oracle``.
    """
    started_at = clock()
    keys = [host.key for host in hosts]
    if len(hosts) < 2 or len(set(keys)) != len(keys):
        raise ConfigError(
            f"trials need at least 2 hosts with distinct keys, found {len(hosts)} ({len(set(keys))} distinct)"
        )
    specs = {WAIT: ControllerSpec(name=WAIT), **specs}
    results = _grow_all(specs, hosts, world, reward, trial_seed(provenance), on_done)
    families = [host.family for host in hosts]
    return TrialReport(
        code_version=provenance.code_version,
        config_digest=provenance.config_digest,
        seed=provenance.seed,
        started_at=started_at,
        finished_at=clock(),
        set=world.set,
        host_keys=keys,
        families=families,
        controllers=[
            _trial(name, episodes, results[WAIT], families, config, provenance.seed)
            for name, episodes in results.items()
        ],
        plans_digest=plans_digest,
    )


def trial_seed(provenance: Provenance) -> int:
    """Of the randomness of controllers that use any."""
    return derive(provenance.seed, "trials")


def _grow_all(
    specs: Mapping[str, ControllerSpec],
    hosts: Sequence[HostIdentity],
    world: WorldConfig,
    reward: RewardConfig,
    seed: int,
    on_done: OnDone | None,
) -> dict[str, Episodes]:
    """Arms are interleaved chunk by chunk, never one after the other; no result depends on the order."""
    jobs = [
        TrialJob(name, spec, chunk, world, reward, seed)
        for chunk in chunked(hosts, world.chunk)
        for name, spec in specs.items()
    ]
    done = run_jobs(grow, jobs, worker_count(world.workers), on_done)
    return {
        name: join([part for job, part in zip(jobs, done, strict=True) if job.controller == name]) for name in specs
    }


def _trial(
    name: str, ours: Episodes, wait: Episodes, families: Sequence[str], config: TrialConfig, seed: int
) -> ControllerTrial:
    is_wait = name == WAIT
    return ControllerTrial(
        controller=name,
        episodes=len(ours.returns),
        mean_return=float(ours.returns.mean()),
        over_wait=None if is_wait else paired_estimate(ours.returns, wait.returns, config, seed, families),
        test_accuracy=float(ours.test_accuracy.mean()),
        validation_accuracy=float(ours.validation_accuracy.mean()),
        committed_parameters=float(ours.committed_parameters.mean()),
        illegal_actions=int(ours.illegal_actions.sum()),
        governor_events=int(ours.panicked.sum()),
        by_family=_by_family(ours, None if is_wait else wait, families, config, seed),
        returns=ours.returns.tolist(),
        test_accuracies=ours.test_accuracy.tolist(),
    )


def _by_family(
    ours: Episodes, wait: Episodes | None, families: Sequence[str], config: TrialConfig, seed: int
) -> dict[str, FamilyTrial]:
    """Each family by itself, in the order of the hosts; without ``wait`` there is nothing to compare with."""
    labels = np.asarray(families)
    trials = {}
    for family in dict.fromkeys(families):
        rows = np.flatnonzero(labels == family)
        over_wait: Estimate | None = None
        if wait is not None and rows.size >= 2:
            over_wait = paired_estimate(ours.returns[rows], wait.returns[rows], config, seed)
        trials[family] = FamilyTrial(
            episodes=rows.size,
            mean_return=float(ours.returns[rows].mean()),
            over_wait=over_wait,
            test_accuracy=float(ours.test_accuracy[rows].mean()),
            validation_accuracy=float(ours.validation_accuracy[rows].mean()),
            committed_parameters=float(ours.committed_parameters[rows].mean()),
        )
    return trials
