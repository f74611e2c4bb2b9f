"""Episodes of an ensemble under a controller, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.contracts.actions import HEADS
from simic.contracts.batches import Decisions, Masks, Observations
from simic.hosts import counter_rng
from simic.hosts.counter_rng import Purpose
from simic.hosts.ensemble import Ensemble, StepOutcome

__all__ = ["Decide", "Step", "controller_uniforms", "rollout"]

Decide = Callable[[Observations, Masks, NDArray[np.float64]], Decisions]
"""(observations, masks, uniforms float64 [N, heads] in [0, 1)) -> decisions."""


class Step(NamedTuple):
    """One decision per host and what came of it; N hosts."""

    epoch: int
    """Epochs trained before the decision."""
    live: NDArray[np.bool_]
    """[N]: rows of finished hosts carry no information."""
    observations: Observations
    masks: Masks
    decisions: Decisions
    outcome: StepOutcome
    after: Observations


def controller_uniforms(keys: NDArray[np.int64], seed: int, epoch: int) -> NDArray[np.float64]:
    """A controller's randomness, float64 [N, heads], from host key, seed, epoch and head alone."""
    return counter_rng.uniforms(counter_rng.streams(keys, Purpose.CONTROLLER, seed, epoch), len(HEADS))


def rollout(ensemble: Ensemble, decide: Decide, seed: int) -> Iterator[Step]:
    """Steer every host to its end."""
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
