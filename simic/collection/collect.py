"""Run hosts under a controller and publish every decision on the bus, chunk by chunk, in parallel."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from simic.bus.factory import BusSpec, open_bus
from simic.collection.branching import Branch, BranchChoice, choose_branches
from simic.collection.early_stop import BELOW_ITS_BEST, HopelessHosts
from simic.collection.reporting import Source, branch_ids, field_reports, run_ids
from simic.contracts.controllers import ControllerSpec
from simic.contracts.errors import ConfigError
from simic.contracts.field_report import FieldReport
from simic.contracts.names import FIELD_REPORTS
from simic.contracts.results.receipts import CollectionReceipt, Provenance
from simic.contracts.rewards import RewardConfig
from simic.contracts.settings.run import EpisodeStopConfig, WorldConfig
from simic.contracts.state import HardwareContext, HostIdentity
from simic.controllers.branching import BranchingController
from simic.controllers.factory import make
from simic.controllers.protocol import Controller
from simic.hosts.batched.images import pictures_digest
from simic.hosts.host_sets import layers_of
from simic.hosts.mixed_ensemble import ensemble_of
from simic.hosts.rollout import Growing, Step, rollout
from simic.hosts.world_identity import world_identity
from simic.numerics.rewards import basic_return, basic_rewards
from simic.runtime.clock import Clock
from simic.runtime.process_pool import run_jobs, worker_count
from simic.runtime.progress import NoProgress, Progress
from simic.trust.canonical import digest_of

__all__ = ["ChunkJob", "ChunkSummary", "ChunkTotals", "collect", "collect_chunk"]

T = TypeVar("T")

NO_STOP = EpisodeStopConfig()
_MOMENT = re.compile(rb'"issued_at":"[^"]*",')
"""What differs between the lines of two identical collections; a quote within a text of JSON has a backslash."""


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
    stopped: int
    """Episodes that ended early, cut off; their returns and test accuracies are NaN."""
    epochs_left_out: int
    """Epochs up to the horizon that they did not run."""
    report_digests: list[str]
    """Per host: SHA-256 over the lines of its reports in step order, without ``issued_at``."""
    chosen: list[Branch]
    """Branches of these episodes that are still to be grown."""


class ChunkTotals:
    """Running totals of a chunk's reports, in four numbers per step."""

    def __init__(self, hosts: int, horizon: int) -> None:
        shape = (horizon, hosts)
        self._horizon = horizon
        self._before, self._after, self._rent = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self._governor = np.zeros(shape, dtype=bool)
        self._test = np.full(hosts, np.nan)
        self._left_out: NDArray[np.int64] = np.zeros(hosts, dtype=np.int64)
        self._digests = [hashlib.sha256() for _ in range(hosts)]
        self._actions: Counter[str] = Counter()

    def note(self, host: int, report: FieldReport, line: bytes) -> None:
        """Add one report, and its ``line`` of JSON, to the totals."""
        metrics, at = report.metrics, (report.step, host)
        self._before[at], self._after[at] = metrics.validation_accuracy_before, metrics.validation_accuracy_after
        self._rent[at] = metrics.rent_parameters
        self._governor[at] = report.governor is not None
        if report.truncated and report.final_state is not None:
            self._left_out[host] = self._horizon - report.final_state.epoch
        if metrics.test_accuracy is not None:
            self._test[host] = metrics.test_accuracy
        self._digests[host].update(_MOMENT.sub(b"", line) + b"\n")
        self._actions[report.action.op.value] += 1

    def returns(self, reward: RewardConfig) -> NDArray[np.float64]:
        """Return the undiscounted returns [N]; steps after a panic count 0, and an episode that was cut off is NaN."""
        rewards = basic_rewards(
            reward,
            horizon=self._horizon,
            accuracy_before=self._before,
            accuracy_after=self._after,
            rent_parameters=self._rent,
            governor=self._governor,
        )
        return np.where(self._left_out > 0, np.nan, basic_return(rewards))

    def summary(self, policy_version: str | None, reward: RewardConfig, chosen: Sequence[Branch] = ()) -> ChunkSummary:
        """Return the totals so far, with the branches chosen."""
        return ChunkSummary(
            policy_version=policy_version,
            reports=self._actions.total(),
            actions=dict(self._actions),
            governor_events=int(self._governor.sum()),
            returns=self.returns(reward).tolist(),
            test_accuracies=self._test.tolist(),
            stopped=int((self._left_out > 0).sum()),
            epochs_left_out=int(self._left_out.sum()),
            report_digests=[digest.hexdigest() for digest in self._digests],
            chosen=list(chosen),
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
    choice: BranchChoice | None = None
    """Which branches of these episodes to choose; None chooses none."""
    branches: tuple[Branch, ...] = ()
    """The branch that each host grows; empty for ordinary episodes."""
    stop: EpisodeStopConfig = NO_STOP
    """When ordinary episodes end early."""


def collect(
    spec: ControllerSpec,
    hosts: Sequence[HostIdentity],
    world: WorldConfig,
    bus: BusSpec,
    *,
    seed: int,
    provenance: Provenance,
    clock: Clock,
    progress: Progress | None = None,
    reward: RewardConfig | None = None,
    choice: BranchChoice | None = None,
    stop: EpisodeStopConfig = NO_STOP,
    on_start: Callable[[datetime], None] | None = None,
) -> CollectionReceipt:
    """Run one episode per host and, with a ``choice``, the branches of these episodes; publish all reports on the bus.

    Reports carry the start time of the collection, so a chunk that runs twice is the same delivery. ``reward`` only
    prices the mean return in the receipt; curation computes the rewards of training. ``stop`` says when an episode ends
    early; with a ``choice`` none does, because the returns of parents and branches are compared. ``on_start`` receives
    the start before a report is published.

    Raises:
        ConfigError: without hosts, or for a controller that cannot be made.
    """
    if not hosts:
        raise ConfigError("collect: no hosts were given")
    started, shown = clock(), progress or NoProgress()
    if on_start is not None:
        on_start(started)
    keys = digest_of([[host.set, host.key] for host in hosts])
    stop = NO_STOP if choice is not None else stop
    stops = {} if stop.fall is None else {"stop": stop.model_dump(mode="json")}
    made_of = {"hosts": keys, "seed": seed, "world": world_identity(world), **stops}
    # The path already names the policy; without the digest, names of deliveries equal those of earlier versions.
    name = digest_of({"spec": spec.model_dump(mode="json", exclude={"policy_digest"}), **made_of})[:16]
    jobs = [
        ChunkJob(
            spec, chunk, world, reward or RewardConfig(), bus, f"{name}-{number:05d}", seed, started, choice, stop=stop
        )
        for number, chunk in enumerate(_chunks(sorted(hosts, key=layers_of), world))
    ]
    episodes = _grow("collect", jobs, shown)
    branches = _grow("branches", _branch_jobs(jobs[0], name, episodes), shown)
    pictures = pictures_digest(world.images)
    return _receipt(spec, hosts, keys, pictures, episodes, branches, provenance, started, clock())


def _branch_jobs(first: ChunkJob, name: str, episodes: Sequence[ChunkSummary]) -> list[ChunkJob]:
    """Return the jobs for the branches that the episodes chose; ``first`` holds what all jobs share.

    Branches are sorted by action: hosts of one chunk then share a blueprint and a slot, which trains fastest.
    """
    chosen = [branch for summary in episodes for branch in summary.chosen]
    chosen.sort(key=lambda branch: (layers_of(branch.host), branch.action, branch.step, branch.host.key))
    covered = digest_of([[branch.parent, branch.step, list(branch.action)] for branch in chosen])[:8]
    return [
        first._replace(
            hosts=tuple(branch.host for branch in chunk),
            branches=chunk,
            choice=None,
            name=f"{name}-{covered}-{number:05d}",
        )
        for number, chunk in enumerate(_chunks(chosen, first.world))
    ]


def _chunks(items: Sequence[T], world: WorldConfig) -> Iterator[tuple[T, ...]]:
    """Yield nearly equal chunks of at most ``world.chunk`` items, as few as possible.

    For several processes their number is even, so that two processes end together.
    """
    fewest = -(-len(items) // world.chunk)
    count = fewest if world.processes == 1 else 2 * -(-fewest // 2)
    edges = np.linspace(0, len(items), count + 1).astype(int).tolist()
    return (tuple(items[start:end]) for start, end in pairwise(edges) if end > start)


def _grow(label: str, jobs: Sequence[ChunkJob], progress: Progress) -> list[ChunkSummary]:
    """Run all chunks in parallel and return their totals, in order."""
    if not jobs:
        return []
    with progress.task(f"{label} {jobs[0].world.set}", sum(len(job.hosts) for job in jobs)) as advance:
        workers = worker_count(jobs[0].world.processes)
        return run_jobs(collect_chunk, jobs, workers, lambda summary: advance(len(summary.returns)))


def collect_chunk(job: ChunkJob) -> ChunkSummary:
    """Run one chunk in a worker: publish its reports from here, and return their totals and the branches chosen."""
    ensemble = ensemble_of(job.hosts, job.world)
    controller: Controller = make(job.spec, job.hosts)
    if job.branches:
        steps_of_branches, actions = (
            [branch.step for branch in job.branches],
            [branch.action for branch in job.branches],
        )
        controller = BranchingController(controller, steps_of_branches, actions)
    totals = ChunkTotals(len(job.hosts), job.world.horizon)
    ids = _run_ids(job, controller)
    steps: list[Step] = []
    lines = _lines(job, ensemble, controller, ids, totals, steps.append if job.choice else None)
    open_bus(job.bus).put(FIELD_REPORTS, job.name, lines)
    chosen = [] if job.choice is None else choose_branches(steps, job.hosts, ids, job.choice)
    return totals.summary(controller.policy_version, job.reward, chosen)


def _run_ids(job: ChunkJob, controller: Controller) -> list[str]:
    if job.branches:
        return branch_ids(job.branches)
    return run_ids(
        job.hosts,
        controller.name,
        controller.policy_version,
        job.seed,
        job.world,
        is_decisive=job.spec.is_decisive and controller.policy_version is not None,
        stop=job.stop,
    )


def _lines(
    job: ChunkJob,
    ensemble: Growing,
    controller: Controller,
    ids: Sequence[str],
    totals: ChunkTotals,
    on_step: Callable[[Step], None] | None,
) -> Iterator[bytes]:
    """Yield every report as JSON; the reports of one host come in step order. Hopeless hosts are cut off."""
    source = Source(
        controller=controller.name,
        policy_version=controller.policy_version,
        hosts=job.hosts,
        run_ids=ids,
        branches=job.branches,
        hardware=HardwareContext(device=job.world.device, threads=job.world.threads),
        issued_at=job.issued_at,
    )
    watch = None if job.stop.fall is None else HopelessHosts(len(job.hosts), job.stop)
    for step in rollout(ensemble, controller.decide, job.seed):
        if on_step is not None:
            on_step(step)
        hopeless = None if watch is None else watch.after(step)
        if hopeless is not None:
            ensemble.cut_off(hopeless)
        for host, report in field_reports(step, source, hopeless):
            line = report.model_dump_json().encode()
            totals.note(host, report, line)
            yield line


def _receipt(
    spec: ControllerSpec,
    hosts: Sequence[HostIdentity],
    keys: str,
    pictures: str | None,
    episodes: Sequence[ChunkSummary],
    branches: Sequence[ChunkSummary],
    provenance: Provenance,
    started: datetime,
    finished: datetime,
) -> CollectionReceipt:
    """Return the receipt; returns, accuracies and actions are those of the episodes, without their branches."""
    everything = [*episodes, *branches]
    actions: Counter[str] = Counter()
    for summary in episodes:
        actions.update(summary.actions)
    stopped = sum(summary.stopped for summary in episodes)
    return CollectionReceipt(
        **provenance._asdict(),
        started_at=started,
        finished_at=finished,
        controller=spec.reported_name,
        policy_digest=episodes[0].policy_version,
        set=hosts[0].set,
        host_keys_digest=keys,
        pictures_digest=pictures,
        episodes=len(hosts),
        branches=sum(len(summary.returns) for summary in branches),
        reports=sum(summary.reports for summary in everything),
        reports_digest=digest_of([digest for summary in everything for digest in summary.report_digests]),
        governor_events=sum(summary.governor_events for summary in everything),
        stopped={BELOW_ITS_BEST: stopped} if stopped else {},
        epochs_left_out=sum(summary.epochs_left_out for summary in episodes),
        actions=dict(actions),
        mean_return=_mean(summary.returns for summary in episodes),
        test_accuracy=_mean(summary.test_accuracies for summary in episodes),
    )


def _mean(parts: Iterable[Sequence[float]]) -> float | None:
    """Return the mean of the values that are not NaN; None if there is none."""
    values = np.concatenate([np.array(part, dtype=np.float64) for part in parts])
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None
