"""The interface of an objective: how a policy learns from a log, the ordinary episodes of a data set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from simic.contracts.settings.training import TrainConfig
from simic.learning.continual.curriculum import Curriculum
from simic.learning.learner import Learner
from simic.learning.phases import Record
from simic.replay.dataset import GraphDataset
from simic.replay.sampler import PassSampler

__all__ = ["LearningTask", "Objective", "PassState"]


@dataclass
class PassState:
    """Which episodes counted passes visit in a round, and with which rates and scale; objectives share it.

    A learner state stores pass counts, advantage scale and curriculum for the next round; all else is planned anew.
    """

    sampler: PassSampler
    """Orders the episodes of a pass, and counts the passes of each against ``train.max_passes``."""
    plan: list[NDArray[np.int64]]
    """Per counted pass of this round, in order, [n]: the sequences of the data set that it visits."""
    warmup: int
    """Updates over which the learning rates rise to their first values."""
    first_share: float = 1.0
    """Share of the peak learning rates with which the passes begin, in (0, 1]."""
    advantage_scale: float | None = None
    """Points by which all advantages are divided, in later rounds too; None before the first counted pass."""
    curriculum: Curriculum | None = None
    """Leaves out the sequences of hosts that are too hard for its stage; None takes all of the plan."""
    may_be_empty: bool = False
    """Whether a training without planned passes leaves the policy as it is instead of being refused."""


class LearningTask(NamedTuple):
    """All that an objective has to learn with in one round: ``begin`` takes it, and ``run`` changes the learner."""

    store: GraphDataset
    """The log: its ``ordinary`` sequences, which are no branches of others."""
    learner: Learner
    """Its network is trained in place; every update goes through it."""
    config: TrainConfig
    seed: int
    """Root of the round's random numbers; differs from round to round."""
    is_fresh: bool
    """The network is untrained, so the objective may begin with supervised phases."""
    passes: PassState
    """For objectives that make counted passes."""


class Objective(Protocol):
    """Learns from one log, once."""

    averages_rounds: bool
    """Whether policies are averaged over rounds."""
    is_resumable: bool
    """Whether a killed training goes on within ``run``. Then all that ``run`` computes from weights, losses aside,
    must come from ``value``, ``keep`` and ``frozen`` of the learner's history, its random numbers from seeds or that
    history's ``generator``, and its other learners must belong to the history. False, or absent: the training begins
    again."""
    metrics: dict[str, float]
    """Final metrics, after ``run``: means over the last pass. They contain ``commit_rate``."""

    @property
    def planned_updates(self) -> int:
        """Return the number of updates of ``run``."""

    @property
    def episodes(self) -> int:
        """Return the number of distinct episodes learned from."""

    @property
    def passes(self) -> float:
        """Return the number of passes summed over the episodes."""

    def run(self) -> Iterator[Record]:
        """Train the learner's network, and yield one record per update.

        Raises:
            TrainingError: if the log cannot be learned from, or the policy collapses.
        """
