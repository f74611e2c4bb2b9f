"""Episodes of an ensemble under a controller, as a generator of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from simic.contracts.actions import HEADS
from simic.contracts.batches import Decisions, Masks, Observations
from simic.contracts.state import HostIdentity
from simic.hosts import rng
from simic.hosts.ensemble import StepOutcome
from simic.hosts.rng import Purpose

__all__ = ["Decide", "Growing", "Step", "controller_uniforms", "rollout"]

Decide = Callable[[Observations, Masks, NDArray[np.float64]], Decisions]
"""(observations, masks, uniforms float64 [N, heads] in [0, 1)) -> decisions."""


class Growing(Protocol):
    """Hosts in the course of their episodes: an ``Ensemble`` or a ``MixedEnsemble``."""

    identities: tuple[HostIdentity, ...]

    @property
    def is_finished(self) -> NDArray[np.bool_]:
        """Return bool [N]: the episode is over."""
        ...

    def observe(self) -> Observations:
        """Return the present observations."""
        ...

    def masks(self) -> Masks:
        """Return the present action masks."""
        ...

    def step(self, actions: NDArray[np.int16]) -> StepOutcome:
        """Apply ``actions`` int16 [N, heads], train one epoch and measure."""
        ...

    def cut_off(self, where: NDArray[np.bool_]) -> None:
        """End the episodes of the hosts ``where`` [N] between two steps; what they would have kept is not measured."""
        ...


class Step(NamedTuple):
    """One decision per host and its outcome; N hosts."""

    epoch: int
    """Epochs trained before the decision."""
    live: NDArray[np.bool_]
    """[N]: False for finished hosts, whose rows hold no information."""
    observations: Observations
    masks: Masks
    decisions: Decisions
    outcome: StepOutcome
    after: Observations


def controller_uniforms(keys: NDArray[np.int64], seed: int, epoch: int) -> NDArray[np.float64]:
    """Return a controller's random numbers, float64 [N, heads]; they depend on host key, seed, epoch and head alone."""
    return rng.uniforms(rng.streams(keys, Purpose.CONTROLLER, seed, epoch), len(HEADS))


def rollout(ensemble: Growing, decide: Decide, seed: int) -> Iterator[Step]:
    """Run every host to the end of its episode, one decision per epoch."""
    keys = np.array([host.key for host in ensemble.identities], dtype=np.int64)
    observations = ensemble.observe()
    epoch = int(observations.system["epoch"].max())
    while not ensemble.is_finished.all():
        masks = ensemble.masks()
        decisions = decide(observations, masks, controller_uniforms(keys, seed, epoch))
        outcome = ensemble.step(decisions.actions)
        after = ensemble.observe()
        yield Step(epoch, outcome.live, observations, masks, decisions, outcome, after)
        observations, epoch = after, epoch + 1
