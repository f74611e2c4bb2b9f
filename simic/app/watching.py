"""One host grown before somebody's eyes, and pictures of what a collection did."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from simic.app.policies import CHAMPION, REFERENCE_PREFIX
from simic.contracts.controllers import ControllerSpec
from simic.contracts.episode import EpisodeRecord, EpochRecord, WatchReport
from simic.contracts.errors import ConfigError
from simic.contracts.splits import Split, split_of
from simic.contracts.state import HostIdentity
from simic.hosts.ensemble import Ensemble
from simic.hosts.keys import draw_keys, identify
from simic.hosts.rollout import Step, rollout
from simic.validation.episodes import build, score
from simic.validation.records import episode_record, epoch_record
from simic.validation.timeline import action_timeline
from simic.validation.trials import WAIT, trial_seed

if TYPE_CHECKING:
    from simic.app.root import App
    from simic.controllers.protocol import Controller

__all__ = ["UNTOLD", "Watch", "check_plot", "draw_collection"]

UNTOLD = "heuristic"
"""Who is watched where nobody was named and there is no champion."""


class Watch:
    """An episode that goes on as far as it is looked at, paired with the same host never grown.

    The controller meets the random numbers of trials, so the same host ends with the same return there. An action
    that its masks forbid is an IllegalAction, not a wait: what is shown is what was decided.
    """

    def __init__(self, app: App, controller: str | None, key: int | None) -> None:
        self._app, self._started_at = app, app.clock()
        asked = controller or (UNTOLD if app.champion_digest() is None else CHAMPION)
        world = app.config.world
        keys = draw_keys(world.set, Split.TEST, 1) if key is None else [key]
        self.host: HostIdentity = identify(world.set, keys)[0]
        self.split: Split = split_of(world.set, self.host.key)
        self.horizon: int = world.horizon
        self._actor = build(app.policies.spec(asked, is_decisive=True), [self.host])
        self.controller: str = _called(asked, self._actor)
        self._steps: list[Step] = []
        idle = build(ControllerSpec(name=WAIT), [self.host])
        self.wait: EpisodeRecord = self._record(list(self._grow(idle)), WAIT)

    def epochs(self) -> Iterator[EpochRecord]:
        """From birth to the end; the host trains an epoch each time the next one is asked for."""
        self._steps = []
        for step in self._grow(self._actor):
            self._steps.append(step)
            yield epoch_record(step, 0)

    def report(self) -> WatchReport:
        """The whole of it; RuntimeError before ``epochs`` has been looked at to its end."""
        if not self._steps or not self._steps[-1].outcome.terminated[0]:
            raise RuntimeError(f"the episode of host {self.host.key} has not ended: take all epochs first")
        episode = self._record(self._steps, self.controller)
        return WatchReport(
            **self._app.provenance._asdict(),
            started_at=self._started_at,
            finished_at=self._app.clock(),
            split=self.split,
            policy_digest=self._actor.policy_version,
            episode=episode,
            wait=self.wait,
            over_wait=episode.return_points - self.wait.return_points,
        )

    def _grow(self, controller: Controller) -> Iterator[Step]:
        ensemble = Ensemble([self.host], self._app.config.world)
        return rollout(ensemble, controller.decide, trial_seed(self._app.provenance))

    def _record(self, steps: Sequence[Step], name: str) -> EpisodeRecord:
        results = score(steps, 1, self._app.config.world, self._app.config.curate.reward.basic)
        return episode_record(steps, 0, self.host, name, results)


def check_plot(path: Path) -> None:
    """ConfigError unless a PNG can come to lie at ``path``, so that nobody learns it after the work; makes folders."""
    if path.suffix.lower() != ".png" or path.is_dir():
        raise ConfigError(f"--plot expects the name of a .png file, found {str(path)!r}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--plot {str(path)!r}: its folder cannot be made: {error}") from error
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"--plot {str(path)!r}: nothing may be written there")


def draw_collection(app: App, spec: ControllerSpec, name: str, host_keys: Sequence[int], path: Path) -> Path:
    """The first host of each family of a collection that has been made, as a timeline.

    They are grown once more with the collection's seed: a host's history hangs on nothing but its key, its actions
    and that seed, so what is drawn is what was reported, and collecting stays the same with and without a picture.
    """
    first: dict[str, HostIdentity] = {}
    for host in identify(app.config.world.set, host_keys):
        first.setdefault(host.family, host)
    hosts = list(first.values())
    actor = build(spec, hosts)
    name = _called(name, actor)
    steps = list(rollout(Ensemble(hosts, app.config.world), actor.decide, app.seed))
    results = score(steps, len(hosts), app.config.world, app.config.curate.reward.basic)
    records = [episode_record(steps, row, host, name, results) for row, host in enumerate(hosts)]
    keys = ", ".join(str(host.key) for host in hosts)
    title = f"What {name} did on hosts {keys} of set {app.config.world.set} (seed {app.seed})"
    return action_timeline(records, path, title)


def _called(asked: str, actor: Controller) -> str:
    """As asked for, but for a directory, which is called by the digest of the policy in it."""
    is_directory = "/" in asked and not asked.startswith(REFERENCE_PREFIX)
    return f"policy {actor.policy_version[:8]}" if is_directory and actor.policy_version else asked
