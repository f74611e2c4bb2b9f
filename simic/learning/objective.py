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
    """What counted passes keep from round to round, whatever the objective of a round is."""

    sampler: PassSampler
    """Counts the passes of each episode."""
    plan: list[NDArray[np.int64]]
    """Episodes of each counted pass of this round."""
    warmup: int
    """Updates of the warm-up."""
    first_share: float = 1.0
    """Initial share of the peak learning rates."""
    advantage_scale: float | None = None
    """Points; None before the first counted pass."""
    curriculum: Curriculum | None = None
    """None draws from all hosts in every pass."""
    may_be_empty: bool = False
    """Whether a training without planned passes leaves the policy as it is instead of being refused."""


class LearningTask(NamedTuple):
    """What an objective is given: a log to learn from, the learner, and its settings."""

    store: GraphDataset
    learner: Learner
    config: TrainConfig
    seed: int
    """Differs from round to round."""
    is_fresh: bool
    """The network is untrained."""
    passes: PassState


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
