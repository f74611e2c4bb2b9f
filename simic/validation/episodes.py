"""One controller grows a handful of hosts: the same code for trials, searches and probes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.contracts.config import RewardConfig, WorldConfig
from simic.contracts.controllers import ControllerSpec
from simic.contracts.errors import ConfigError
from simic.contracts.state import HostIdentity
from simic.controllers.catalogue import make
from simic.controllers.protocol import Controller
from simic.hosts.ensemble import Ensemble
from simic.hosts.rollout import Step, rollout
from simic.numerics.rewards import basic_rewards
from simic.trust.keys import Keyring
from simic.trust.seal import verify

__all__ = ["Episodes", "TrialJob", "build", "chunked", "grow", "grow_with", "join", "score", "steps_of"]


@dataclass(frozen=True)
class TrialJob:
    """A chunk of hosts for one controller; plain data that another process can take."""

    controller: str
    """The row the episodes belong to."""
    spec: ControllerSpec
    hosts: tuple[HostIdentity, ...]
    world: WorldConfig
    reward: RewardConfig
    seed: int
    """Of the controller's own randomness."""


class Episodes(NamedTuple):
    """Finished episodes, one entry per host in the order of the job."""

    returns: NDArray[np.float64]
    """Undiscounted, points."""
    validation_accuracy: NDArray[np.float64]
    """Of the network to be kept."""
    test_accuracy: NDArray[np.float64]
    committed_parameters: NDArray[np.int64]
    panicked: NDArray[np.bool_]


def chunked(hosts: Sequence[HostIdentity], size: int) -> Iterator[tuple[HostIdentity, ...]]:
    """Consecutive chunks of at most ``size`` hosts."""
    return (tuple(hosts[start : start + size]) for start in range(0, len(hosts), size))


def grow(job: TrialJob) -> Episodes:
    """Run the job's hosts to their end; an action outside its masks raises IllegalAction."""
    return grow_with(build(job.spec, job.hosts), job)


def build(spec: ControllerSpec, hosts: Sequence[HostIdentity]) -> Controller:
    """The controller of a spec; a policy is read only after its seal was checked against the spec's keyring."""

    def check(directory: Path) -> str:
        if spec.keyring_path is None:
            raise ConfigError(f"controller {spec.name!r} needs keyring_path: the keys its policy may be sealed with")
        return verify(directory, Keyring(Path(spec.keyring_path))).digest

    return make(spec, hosts, verify=check)


def grow_with(controller: Controller, job: TrialJob) -> Episodes:
    """Likewise, under a controller already built."""
    return score(steps_of(controller, job), len(job.hosts), job.world, job.reward)


def steps_of(controller: Controller, job: TrialJob) -> Iterator[Step]:
    """The bare steps, for those who want to watch."""
    return rollout(Ensemble(job.hosts, job.world), controller.decide, job.seed)


def score(steps: Iterable[Step], hosts: int, world: WorldConfig, reward: RewardConfig) -> Episodes:
    """Returns and final measurements of ``hosts`` episodes."""
    returns = np.zeros(hosts)
    final = {name: np.full(hosts, np.nan) for name in ("validation_accuracy", "test_accuracy")}
    committed = np.zeros(hosts, dtype=np.int64)
    panicked = np.zeros(hosts, dtype=np.bool_)
    for step in steps:
        outcome, live = step.outcome, step.live
        panic = np.array([event is not None for event in outcome.governor])
        ended = live & outcome.terminated
        after = np.where(ended, outcome.committed_validation_accuracy, outcome.validation_accuracy_after)
        r_t = np.zeros(hosts)
        r_t[live] = basic_rewards(
            accuracy_before=outcome.validation_accuracy_before[live],
            accuracy_after=after[live],
            rent_parameters=outcome.rent_parameters[live],
            governor=panic[live],
            accuracy_scale=reward.accuracy_scale,
            rent=reward.rent,
            rent_parameters_scale=reward.rent_parameters,
            horizon=world.horizon,
            governor_penalty=reward.governor_penalty,
        )
        returns += r_t  # step by step, so that a sum has the same bits in any company
        panicked |= live & panic
        final["validation_accuracy"][ended] = outcome.committed_validation_accuracy[ended]
        final["test_accuracy"][ended] = outcome.test_accuracy[ended]
        committed[ended] = outcome.committed_parameters[ended]
    return Episodes(returns, final["validation_accuracy"], final["test_accuracy"], committed, panicked)


def join(parts: Sequence[Episodes]) -> Episodes:
    """Chunks of one controller, in order."""
    return Episodes(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
