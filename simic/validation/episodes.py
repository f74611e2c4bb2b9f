"""One controller grows a handful of hosts: the same code for trials, searches and probes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.contracts.actions import Head, Op
from simic.contracts.batches import HEAD_INDEX, OP_INDEX, Decisions, Masks, Observations
from simic.contracts.config import RewardConfig, WorldConfig
from simic.contracts.controllers import ControllerSpec
from simic.contracts.errors import ConfigError, IllegalAction
from simic.contracts.state import HostIdentity
from simic.controllers.catalogue import make
from simic.controllers.protocol import Controller
from simic.hosts.ensemble import Ensemble
from simic.hosts.legality import check_actions
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
    illegal_actions: NDArray[np.int64]
    """Decisions that the masks forbid; the host waited instead."""


def chunked(hosts: Sequence[HostIdentity], size: int) -> Iterator[tuple[HostIdentity, ...]]:
    """Consecutive chunks of at most ``size`` hosts."""
    return (tuple(hosts[start : start + size]) for start in range(0, len(hosts), size))


def grow(job: TrialJob) -> Episodes:
    """Run the job's hosts to their end; an action outside its masks counts, and the host waits instead."""
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
    watched = _Watched(controller, len(job.hosts))
    episodes = score(_steps(watched, job), len(job.hosts), job.world, job.reward)
    return episodes._replace(illegal_actions=watched.illegal)


def steps_of(controller: Controller, job: TrialJob) -> Iterator[Step]:
    """The bare steps, for those who want to see them; an illegal action has become a wait."""
    return _steps(_Watched(controller, len(job.hosts)), job)


def _steps(watched: _Watched, job: TrialJob) -> Iterator[Step]:
    return rollout(Ensemble(job.hosts, job.world), watched.decide, job.seed)


class _Watched:
    """A controller whose illegal actions are counted: one such must cost it the gate, not the whole trial."""

    def __init__(self, controller: Controller, hosts: int) -> None:
        self._controller = controller
        self.illegal = np.zeros(hosts, dtype=np.int64)
        """[hosts]: decisions so far that the masks forbade."""

    def decide(self, observations: Observations, masks: Masks, uniforms: NDArray[np.float64]) -> Decisions:
        """As the controller decides where that is legal, else wait."""
        decisions = self._controller.decide(observations, masks, uniforms)
        bad = _illegal_rows(decisions.actions, masks, observations.slot_ptr)
        self.illegal += bad
        if not bad.any():
            return decisions
        actions, log_probs = decisions.actions.copy(), decisions.log_probs.copy()
        actions[bad], log_probs[bad] = -1, np.nan
        actions[bad, HEAD_INDEX[Head.OP]] = OP_INDEX[Op.WAIT]
        return Decisions(actions, log_probs)


def _illegal_rows(actions: NDArray[np.int16], masks: Masks, slot_ptr: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[N]: which actions [N, A] the executor would refuse; host by host only if it would refuse any."""
    rows = np.arange(len(actions))
    if _is_legal(actions, masks):
        return np.zeros(len(rows), dtype=np.bool_)
    return np.array([not _is_legal(actions[row : row + 1], masks.take(rows[row : row + 1], slot_ptr)) for row in rows])


def _is_legal(actions: NDArray[np.int16], masks: Masks) -> bool:
    try:
        check_actions(actions, masks, np.arange(len(masks.op)))
    except IllegalAction:
        return False
    return True


def score(steps: Iterable[Step], hosts: int, world: WorldConfig, reward: RewardConfig) -> Episodes:
    """Returns and final measurements of ``hosts`` episodes; steps were taken, so every action was legal."""
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
    return Episodes(
        returns, final["validation_accuracy"], final["test_accuracy"], committed, panicked,
        illegal_actions=np.zeros(hosts, dtype=np.int64),
    )  # fmt: skip


def join(parts: Sequence[Episodes]) -> Episodes:
    """Chunks of one controller, in order."""
    return Episodes(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
