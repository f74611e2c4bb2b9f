"""Run hosts under a controller and publish every decision on the bus, chunk by chunk, in parallel."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.bus.factory import BusSpec, open_bus
from simic.collection.reporting import Source, field_reports, run_ids
from simic.contracts.config import RewardConfig, WorldConfig
from simic.contracts.controllers import ControllerSpec
from simic.contracts.errors import ConfigError
from simic.contracts.field_report import FieldReport
from simic.contracts.names import FIELD_REPORTS
from simic.contracts.receipts import CollectionReceipt, Provenance
from simic.contracts.state import HardwareContext, HostIdentity
from simic.controllers.factory import make
from simic.controllers.protocol import Controller, Verified, Verify
from simic.hosts.batched.images import pictures_digest
from simic.hosts.ensemble import Ensemble
from simic.hosts.plugins import world_identity
from simic.hosts.rollout import rollout
from simic.numerics.rewards import basic_return, basic_rewards
from simic.runtime.clock import Clock
from simic.runtime.process_pool import run_jobs, worker_count
from simic.trust.canonical import digest_of
from simic.trust.keys import Keyring
from simic.trust.seal import verify

__all__ = ["ChunkJob", "ChunkSummary", "ChunkTotals", "collect", "collect_chunk"]

_NOT_CONTENT = {"issued_at"}
"""Fields that differ between two identical collections."""


class ChunkSummary(NamedTuple):
    """Totals of one chunk; plain data for another process."""

    policy_version: str | None
    reports: int
    actions: dict[str, int]
    """Decisions per operation."""
    governor_events: int
    returns: list[float]
    """Undiscounted return per host."""
    test_accuracies: list[float]
    """Test accuracy per host."""
    report_digests: list[str]
    """Per host: SHA-256 over the lines of its reports in step order, without ``issued_at``."""


class ChunkTotals:
    """Running totals of a chunk's reports, in four numbers per step."""

    def __init__(self, hosts: int, horizon: int) -> None:
        shape = (horizon, hosts)
        self._horizon = horizon
        self._before, self._after, self._rent = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self._governor = np.zeros(shape, dtype=bool)
        self._test = np.full(hosts, np.nan)
        self._digests = [hashlib.sha256() for _ in range(hosts)]
        self._actions: Counter[str] = Counter()

    def note(self, host: int, report: FieldReport) -> None:
        """Add one report to the totals."""
        metrics, at = report.metrics, (report.step, host)
        self._before[at], self._after[at] = metrics.validation_accuracy_before, metrics.validation_accuracy_after
        self._rent[at] = metrics.rent_parameters
        self._governor[at] = report.governor is not None
        if metrics.test_accuracy is not None:
            self._test[host] = metrics.test_accuracy
        self._digests[host].update(report.model_dump_json(exclude=_NOT_CONTENT).encode() + b"\n")
        self._actions[report.action.op.value] += 1

    def returns(self, reward: RewardConfig) -> NDArray[np.float64]:
        """Return the undiscounted returns [N]; steps that did not run count 0."""
        rewards = basic_rewards(
            accuracy_before=self._before,
            accuracy_after=self._after,
            rent_parameters=self._rent,
            governor=self._governor,
            accuracy_scale=reward.accuracy_scale,
            rent=reward.rent,
            rent_parameters_scale=reward.rent_parameters,
            horizon=self._horizon,
            governor_penalty=reward.governor_penalty,
        )
        return basic_return(rewards)

    def summary(self, policy_version: str | None, reward: RewardConfig) -> ChunkSummary:
        """Return the totals so far."""
        return ChunkSummary(
            policy_version=policy_version,
            reports=self._actions.total(),
            actions=dict(self._actions),
            governor_events=int(self._governor.sum()),
            returns=self.returns(reward).tolist(),
            test_accuracies=self._test.tolist(),
            report_digests=[digest.hexdigest() for digest in self._digests],
        )


class ChunkJob(NamedTuple):
    """One chunk of hosts; plain data for another process."""

    spec: ControllerSpec
    hosts: tuple[HostIdentity, ...]
    world: WorldConfig
    reward: RewardConfig
    bus: BusSpec
    name: str
    """Name of the delivery on the bus."""
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
    """Run one episode per host and publish its reports on the bus.

    Reports carry the start time of the collection, so a chunk that runs twice is the same delivery. ``reward`` only
    prices the mean return in the receipt; curation computes the rewards of training.

    Args:
        on_progress: called with the number of episodes of every finished chunk.

    Raises:
        ConfigError: without hosts, or for a controller that cannot be made.
    """
    if not hosts:
        raise ConfigError("collect: no hosts were given")
    started = clock()
    keys = digest_of([[host.set, host.key] for host in hosts])
    made_of = {"hosts": keys, "seed": seed, "world": world_identity(world)}
    # The path already names the policy; without the digest, names of deliveries equal those of earlier versions.
    name = digest_of({"spec": spec.model_dump(mode="json", exclude={"policy_digest"}), **made_of})[:16]
    chunks = [tuple(hosts[start : start + world.chunk]) for start in range(0, len(hosts), world.chunk)]
    jobs = [
        ChunkJob(spec, chunk, world, reward or RewardConfig(), bus, f"{name}-{number:05d}", seed, started)
        for number, chunk in enumerate(chunks)
    ]

    def report_progress(summary: ChunkSummary) -> None:
        if on_progress is not None:
            on_progress(len(summary.returns))

    summaries = run_jobs(collect_chunk, jobs, worker_count(world.processes), report_progress)
    return _receipt(spec, hosts, keys, pictures_digest(world.images), summaries, provenance, started, clock())


def collect_chunk(job: ChunkJob) -> ChunkSummary:
    """Run one chunk in a worker: publish its reports from here and return their totals."""
    ensemble = Ensemble(job.hosts, job.world)
    controller = make(job.spec, job.hosts, verify=_verifier(job.spec))
    totals = ChunkTotals(len(job.hosts), job.world.horizon)
    open_bus(job.bus).put(FIELD_REPORTS, job.name, _lines(job, ensemble, controller, totals))
    return totals.summary(controller.policy_version, job.reward)


def _lines(job: ChunkJob, ensemble: Ensemble, controller: Controller, totals: ChunkTotals) -> Iterator[bytes]:
    """Yield every report as JSON; the reports of one host come in step order."""
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
            totals.note(host, report)
            yield report.model_dump_json().encode()


def _verifier(spec: ControllerSpec) -> Verify | None:
    """Return a verifier for the spec's keyring and digest, or None without a keyring."""
    if spec.keyring_path is None:
        return None
    keyring = Keyring(Path(spec.keyring_path))

    def check(path: Path) -> Verified:
        sealed = verify(path, keyring, spec.policy_digest)
        return Verified(sealed.digest, {file.name: file.sha256 for file in sealed.files})

    return check


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
