"""One episode shown while it runs, and timelines of a collection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from simic.app.container import Container
from simic.app.names.trial_controllers import spec_in_set
from simic.contracts.controllers import ControllerSpec
from simic.contracts.episode import AttributionReport, EpisodeRecord, EpochRecord, WatchReport
from simic.contracts.feature_ranges import OutOfRange
from simic.contracts.names import CHAMPION, HEURISTIC, WAIT
from simic.contracts.splits import Split, split_of
from simic.contracts.state import HostIdentity
from simic.controllers.factory import make
from simic.controllers.learned_controller import LearnedController
from simic.controllers.protocol import Controller
from simic.hosts.ensemble import Ensemble
from simic.hosts.host_sets import draw_keys, identify
from simic.hosts.mixed_ensemble import ensemble_of
from simic.hosts.rollout import Step, rollout
from simic.validation.attribution import attribution_record
from simic.validation.episodes import episode_record, epoch_record, score
from simic.validation.timeline import action_timeline
from simic.validation.trials import trial_seed

__all__ = ["DEFAULT_CONTROLLER", "LiveEpisode", "draw_collection"]

DEFAULT_CONTROLLER = HEURISTIC
"""Shown if no controller is named and there is no champion."""


class LiveEpisode:
    """One episode, stepped lazily as ``epochs()`` is consumed, next to the same host without growth.

    Uses the random streams of trials, so the return equals the one `simic trials` reports. An action that the masks
    forbid raises IllegalActionError instead of becoming a wait, so every shown action is the decided one.
    """

    def __init__(self, container: Container, controller: str | None = None, key: int | None = None) -> None:
        self._container, self._started_at = container, container.clock()
        asked = controller or (DEFAULT_CONTROLLER if container.policies.champion_digest() is None else CHAMPION)
        world = container.config.world
        keys = draw_keys(world.set, Split.TEST, 1) if key is None else [key]
        self.host: HostIdentity = identify(world.set, keys)[0]
        self.split: Split = split_of(world.set, self.host.key)
        self.horizon: int = world.horizon
        spec = spec_in_set(container, asked)
        self._actor = make(spec, [self.host])
        self.controller: str = _display_name(container, asked, spec)
        self._steps: list[Step] = []
        self._ensemble: Ensemble | None = None
        idle = make(ControllerSpec(name=WAIT), [self.host])
        self.wait: EpisodeRecord = self._record(list(self._grow(idle, Ensemble([self.host], world))), WAIT)

    def epochs(self) -> Iterator[EpochRecord]:
        """Yield the epochs from birth to the end; the host trains one epoch for each that is requested."""
        self._steps = []
        self._ensemble = Ensemble([self.host], self._container.config.world)
        for step in self._grow(self._actor, self._ensemble):
            self._steps.append(step)
            yield epoch_record(step, 0)

    def report(self) -> WatchReport:
        """Return the report of the whole episode.

        Raises:
            RuntimeError: if ``epochs`` was not consumed to its end.
        """
        if not self._steps or not self._steps[-1].outcome.terminated[0]:
            raise RuntimeError(f"the episode of host {self.host.key} has not ended: consume all epochs first")
        episode = self._record(self._steps, self.controller)
        return WatchReport(
            **self._container.provenance._asdict(),
            started_at=self._started_at,
            finished_at=self._container.clock(),
            split=self.split,
            policy_digest=self._actor.policy_version,
            episode=episode,
            wait=self.wait,
            over_wait=episode.return_points - self.wait.return_points,
            out_of_range=self._out_of_range(),
        )

    def _out_of_range(self) -> list[OutOfRange] | None:
        if not isinstance(self._actor, LearnedController):
            return None
        measurements: dict[tuple[str, str], OutOfRange] = {}
        for step in self._steps:
            outside = self._actor.out_of_range(step.observations)
            if outside is None:
                return None
            for measurement in outside:
                measurements.setdefault((measurement.node, measurement.feature), measurement)
        return list(measurements.values())

    def attributed_report(self) -> AttributionReport:
        """Return the report of the whole episode with the exact attribution of its accuracy.

        Every set of active seeds costs one validation pass.

        Raises:
            RuntimeError: if ``epochs`` was not consumed to its end.
            ConfigError: if the host has more active seeds than can be measured exactly.
        """
        report = self.report()
        if self._ensemble is None:
            raise RuntimeError(f"the episode of host {self.host.key} has not started: iterate over the epochs first")
        account = attribution_record(self._ensemble.attribute(), 0, report.episode.epochs[-1].slots)
        return AttributionReport(
            **{name: getattr(report, name) for name in WatchReport.model_fields}, attribution=account
        )

    def _grow(self, controller: Controller, ensemble: Ensemble) -> Iterator[Step]:
        return rollout(ensemble, controller.decide, trial_seed(self._container.provenance))

    def _record(self, steps: Sequence[Step], name: str) -> EpisodeRecord:
        results = score(steps, 1, self._container.config.world, self._container.config.curate.reward.basic)
        return episode_record(steps, 0, self.host, name, results)


def draw_collection(
    container: Container, spec: ControllerSpec, name: str, host_keys: Sequence[int], path: Path
) -> Path:
    """Draw the first host of each family of a finished collection as a timeline.

    The hosts are grown again with the collection's seed. The history of a host depends only on its key, its actions and
    that seed, so the picture shows what was reported, and collecting is the same with and without a picture.
    """
    first: dict[str, HostIdentity] = {}
    for host in identify(container.config.world.set, host_keys):
        first.setdefault(host.family, host)
    hosts = list(first.values())
    actor = make(spec, hosts)
    name = _display_name(container, name, spec)
    steps = list(rollout(ensemble_of(hosts, container.config.world), actor.decide, container.seed))
    results = score(steps, len(hosts), container.config.world, container.config.curate.reward.basic)
    records = [episode_record(steps, row, host, name, results) for row, host in enumerate(hosts)]
    keys = ", ".join(str(host.key) for host in hosts)
    title = f"What {name} did on hosts {keys} of set {container.config.world.set} (seed {container.seed})"
    return action_timeline(records, path, title)


def _display_name(container: Container, asked: str, spec: ControllerSpec) -> str:
    """Return the name used in trials, with a note for a heuristic without a plan book."""
    is_bare = spec.name == HEURISTIC and spec.rules is not None
    return f"{asked} on its default rules" if is_bare else container.policies.label(asked, spec)
