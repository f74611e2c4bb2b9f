"""Objectives that make counted passes over a log with one loss, from scratch after the supervised phases.

The supervised phases run only from scratch: refitting the value encoder of a trained policy would change the features
that its policy heads read. Cloning precedes the value fit; the reverse order was no better (ADR 9).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from simic.contracts.errors import TrainingError
from simic.learning.learner import LrSchedule
from simic.learning.losses import Loss
from simic.learning.objective import Log
from simic.learning.phases import (
    Record,
    check_commit_rate,
    cloning,
    fitted_scale,
    means,
    supervised_sampler,
    value_fit,
)
from simic.replay.batch import SequenceBatch

__all__ = ["CountedPasses"]

FINAL_SHARE = 0.1
"""Final learning rate as a share of the initial one."""


class CountedPasses(ABC):
    """Runs the planned passes; an objective gives the loss and may leave updates out."""

    averages_rounds: ClassVar[bool] = True
    phase: ClassVar[str]
    """Phase of the records."""

    def __init__(self, log: Log) -> None:
        self.log, self.metrics = log, dict[str, float]()

    @abstractmethod
    def loss(self, batch: SequenceBatch, advantage_scale: float) -> Loss:
        """Return the loss of a batch; ``advantage_scale`` in points is the same in all batches of a run."""

    def begins(self, number: int, last: Sequence[Mapping[str, float]]) -> bool:  # noqa: ARG002 - for objectives
        """Prepare pass ``number``, and return whether it takes place; ``last`` has the updates of the one before."""
        return True

    def goes_on(self, metrics: Mapping[str, float]) -> bool:  # noqa: ARG002 - for objectives
        """Return whether the pass goes on after an update with ``metrics``."""
        return True

    def run(self) -> Iterator[Record]:
        """Run all phases, and yield one record per update.

        Raises:
            TrainingError: if no episode has a pass left, or the commit rate falls too low.
        """
        store, learner, config, seed = self.log.store, self.log.learner, self.log.config, self.log.seed
        if not self.log.passes.plan:
            raise TrainingError("no episode has a pass left: collect new ones or raise train.max_passes")
        if self.log.is_fresh:
            samplers = [supervised_sampler(config, seed, phase) for phase in ("cloning", "value_fit")]
            yield from cloning(learner, store, samplers[0], config, config.cloning_passes)
            yield from value_fit(learner, store, samplers[1], config, config.value_passes)
        yield from self._passes()

    def _passes(self) -> Iterator[Record]:
        state = self.log.passes
        scale = state.advantage_scale
        if scale is None:
            scale = fitted_scale(self.log.learner, self.log.store, self.log.config.batch_sequences)
            state.advantage_scale = scale
        schedule = LrSchedule(state.warmup, self._pass_updates, state.first_share, state.first_share * FINAL_SHARE)
        last, position, left_out = list[dict[str, float]](), 0, 0
        for number, rows in enumerate(state.plan):
            if self.begins(number, last):
                last = []
                for record in self._pass(rows, schedule, position, scale):
                    last.append(record.metrics)
                    yield record
                left_out += self._updates_of(len(rows)) - len(last)
            else:
                left_out += self._updates_of(len(rows))
            position += self._updates_of(len(rows))
        self.metrics = {**means(last), "advantage_scale": scale, "updates_left_out": float(left_out)}

    def _pass(
        self, rows: NDArray[np.int64], schedule: LrSchedule, position: int, advantage_scale: float
    ) -> Iterator[Record]:
        """Run one pass, at ``position`` of the schedule; raise TrainingError if the policy has collapsed at its end."""
        log, seen = self.log, list[dict[str, float]]()
        for ids in log.passes.sampler.draw_pass(log.store.sequences.run_ids, rows):
            loss = self.loss(log.store.batch(ids), advantage_scale)
            metrics = log.learner.update(loss, schedule, position + len(seen))
            seen.append(metrics)
            yield Record(log.learner.updates, self.phase, metrics)
            if not self.goes_on(metrics):
                break
        check_commit_rate(seen, log.config.min_commit_rate)

    @property
    def planned_updates(self) -> int:
        """Return the number of updates of all phases if none is left out."""
        passes = self.log.config.cloning_passes + self.log.config.value_passes if self.log.is_fresh else 0
        return passes * self._updates_of(len(self.log.store.ordinary)) + self._pass_updates

    @property
    def episodes(self) -> int:
        """Return the number of episodes with a counted pass in this run or an earlier round."""
        return int(np.count_nonzero(self._counts()))

    @property
    def passes(self) -> float:
        """Return the sum of the counted passes of all episodes."""
        return float(self._counts().sum())

    def _counts(self) -> NDArray[np.int64]:
        return self.log.passes.sampler.passes_of(self.log.store.sequences.run_ids)

    @property
    def _pass_updates(self) -> int:
        return sum(self._updates_of(len(rows)) for rows in self.log.passes.plan)

    def _updates_of(self, episodes: int) -> int:
        return -(-episodes // self.log.config.batch_sequences)
