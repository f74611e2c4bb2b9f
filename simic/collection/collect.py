"""Grow hosts under a controller and put every decision on the bus, chunk by chunk, side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from simic.bus.opening import BusSpec, open_bus
from simic.bus.protocol import FIELD_REPORTS
from simic.collection.reporting import Source, field_reports, run_ids
from simic.collection.tally import ChunkSummary, Tally
from simic.contracts.config import RewardConfig, WorldConfig
from simic.contracts.controllers import ControllerSpec
from simic.contracts.errors import ConfigError
from simic.contracts.receipts import CollectionReceipt, Provenance
from simic.contracts.state import HardwareContext, HostIdentity
from simic.controllers.catalogue import make
from simic.controllers.protocol import Controller
from simic.hosts.catalogue import world_identity
from simic.hosts.ensemble import Ensemble
from simic.hosts.rollout import rollout
from simic.hosts.stacked.pictures import pictures_digest
from simic.runtime.clock import Clock
from simic.runtime.parallel import run_jobs, worker_count
from simic.trust.canonical import digest_of
from simic.trust.keys import Keyring
from simic.trust.seal import verify

__all__ = ["ChunkJob", "collect", "grow_chunk"]


class ChunkJob(NamedTuple):
    """Hosts that are grown together; plain data for another process."""

    spec: ControllerSpec
    hosts: tuple[HostIdentity, ...]
    world: WorldConfig
    reward: RewardConfig
    bus: BusSpec
    name: str
    """Of the delivery on the bus."""
    seed: int
    issued_at: datetime


def collect(
    spec: ControllerSpec,
    hosts: Sequence[HostIdentity],
    world: WorldConfig,
    bus: BusSpec,
    *,
    seed: int,
    provenance: Provenance,
    clock: Clock,
    on_progress: Callable[[int], None] | None = None,
    reward: RewardConfig | None = None,
) -> CollectionReceipt:
    """One episode per host, reported to the bus; ``on_progress`` hears of every chunk's number of episodes.

    Reports carry the moment the collection began, so a chunk grown twice is the same delivery. ``reward`` only
    prices the mean return in the receipt; curation computes the rewards that learning sees.
    """
    if not hosts:
        raise ConfigError("collect: no hosts were given")
    started = clock()
    keys = digest_of([[host.set, host.key] for host in hosts])
    made_of = {"hosts": keys, "seed": seed, "world": world_identity(world)}
    name = digest_of({"spec": spec.model_dump(mode="json"), **made_of})[:16]
    chunks = [tuple(hosts[start : start + world.chunk]) for start in range(0, len(hosts), world.chunk)]
    jobs = [
        ChunkJob(spec, chunk, world, reward or RewardConfig(), bus, f"{name}-{number:05d}", seed, started)
        for number, chunk in enumerate(chunks)
    ]

    def report_progress(summary: ChunkSummary) -> None:
        if on_progress is not None:
            on_progress(len(summary.returns))

    summaries = run_jobs(grow_chunk, jobs, worker_count(world.processes), report_progress)
    return _receipt(spec, hosts, keys, pictures_digest(world.images), summaries, provenance, started, clock())


def grow_chunk(job: ChunkJob) -> ChunkSummary:
    """Runs in a worker: the reports go from here to the bus, only their sums come back."""
    ensemble = Ensemble(job.hosts, job.world)
    controller = make(job.spec, job.hosts, verify=_verifier(job.spec))
    tally = Tally(len(job.hosts), job.world.horizon)
    open_bus(job.bus).put(FIELD_REPORTS, job.name, _lines(job, ensemble, controller, tally))
    return tally.summary(controller.policy_version, job.reward)


def _lines(job: ChunkJob, ensemble: Ensemble, controller: Controller, tally: Tally) -> Iterator[bytes]:
    """JSON of every report; the reports of one host come in step order."""
    source = Source(
        controller=controller.name,
        policy_version=controller.policy_version,
        hosts=job.hosts,
        run_ids=run_ids(job.hosts, controller.name, controller.policy_version, job.seed, job.world),
        hardware=HardwareContext(device=job.world.device, threads=job.world.threads),
        issued_at=job.issued_at,
    )
    for step in rollout(ensemble, controller.decide, job.seed):
        for host, report in field_reports(step, source):
            tally.note(host, report)
            yield report.model_dump_json().encode()


def _verifier(spec: ControllerSpec) -> Callable[[Path], str] | None:
    """Checks seals against the spec's keyring; without one no policy can be loaded."""
    if spec.keyring_path is None:
        return None
    keyring = Keyring(Path(spec.keyring_path))
    return lambda path: verify(path, keyring).digest


def _receipt(
    spec: ControllerSpec,
    hosts: Sequence[HostIdentity],
    keys: str,
    pictures: str | None,
    summaries: Sequence[ChunkSummary],
    provenance: Provenance,
    started: datetime,
    finished: datetime,
) -> CollectionReceipt:
    actions: Counter[str] = Counter()
    for summary in summaries:
        actions.update(summary.actions)
    accuracies = np.concatenate([summary.test_accuracies for summary in summaries])
    measured = accuracies[np.isfinite(accuracies)]
    return CollectionReceipt(
        **provenance._asdict(),
        started_at=started,
        finished_at=finished,
        controller=spec.name,
        policy_digest=summaries[0].policy_version,
        set=hosts[0].set,
        host_keys_digest=keys,
        pictures_digest=pictures,
        episodes=len(hosts),
        reports=sum(summary.reports for summary in summaries),
        reports_digest=digest_of([digest for summary in summaries for digest in summary.report_digests]),
        governor_events=sum(summary.governor_events for summary in summaries),
        actions=dict(actions),
        mean_return=float(np.mean(np.concatenate([summary.returns for summary in summaries]))),
        test_accuracy=float(measured.mean()) if len(measured) else None,
    )
