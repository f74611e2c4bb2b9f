"""``vtrace``: cloning, value regression, then V-trace (Espeholt et al. 2018, section 4.1).

The supervised phases run only from scratch: refitting the value encoder of a trained policy would change the features
that its policy heads read. Cloning precedes the value fit; the reverse order was no better (ADR 9).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simic.contracts.errors import TrainingError
from simic.learning.learner import LrSchedule
from simic.learning.losses import VTraceLossConfig
from simic.learning.objective import Log
from simic.learning.phases import Record, cloning, fitted_scale, means, supervised_sampler, value_fit, vtrace_passes

__all__ = ["NAME", "SUMMARY", "VTraceObjective", "begin"]

NAME = "vtrace"
SUMMARY = "cloning, value regression, then V-trace"
FINAL_SHARE = 0.1
"""Final learning rate as a share of the initial one."""


class VTraceObjective:
    """Runs the planned V-trace passes, from scratch after the supervised phases."""

    averages_rounds = True

    def __init__(self, log: Log) -> None:
        self._log, self.metrics = log, dict[str, float]()

    def run(self) -> Iterator[Record]:
        """Run all phases, and yield one record per update.

        Raises:
            TrainingError: if no episode has a pass left, or the commit rate falls too low.
        """
        store, learner, config, seed = self._log.store, self._log.learner, self._log.config, self._log.seed
        if not self._log.vtrace.plan:
            raise TrainingError("no episode has a V-trace pass left: collect new ones or raise train.max_passes")
        if self._log.is_fresh:
            samplers = [supervised_sampler(config, seed, phase) for phase in ("cloning", "value_fit")]
            yield from cloning(learner, store, samplers[0], config, config.cloning_passes)
            yield from value_fit(learner, store, samplers[1], config, config.value_passes)
        yield from self._passes()

    def _passes(self) -> Iterator[Record]:
        store, learner, config, state = self._log.store, self._log.learner, self._log.config, self._log.vtrace
        if state.advantage_scale is None:
            state.advantage_scale = fitted_scale(learner, store, config.batch_sequences)
        records = []
        for record in vtrace_passes(
            learner,
            store,
            state.sampler,
            state.plan,
            LrSchedule(state.warmup, self._vtrace_updates, state.first_share, state.first_share * FINAL_SHARE),
            VTraceLossConfig.of(config, state.advantage_scale),
            min_commit_rate=config.min_commit_rate,
        ):
            records.append(record.metrics)
            yield record
        last = means(records[-self._updates_of(len(state.plan[-1])) :])
        self.metrics = {**last, "advantage_scale": state.advantage_scale}

    @property
    def planned_updates(self) -> int:
        """Return the number of updates of all phases."""
        passes = self._log.config.cloning_passes + self._log.config.value_passes if self._log.is_fresh else 0
        return passes * self._updates_of(len(self._log.store.ordinary)) + self._vtrace_updates

    @property
    def episodes(self) -> int:
        """Return the number of episodes with a V-trace pass in this run or an earlier round."""
        return int(np.count_nonzero(self._counts()))

    @property
    def passes(self) -> float:
        """Return the sum of the V-trace passes of all episodes."""
        return float(self._counts().sum())

    def _counts(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return self._log.vtrace.sampler.passes_of(self._log.store.sequences.run_ids)

    @property
    def _vtrace_updates(self) -> int:
        return sum(self._updates_of(len(rows)) for rows in self._log.vtrace.plan)

    def _updates_of(self, episodes: int) -> int:
        return -(-episodes // self._log.config.batch_sequences)


def begin(log: Log) -> VTraceObjective:
    """Return the objective for a log."""
    return VTraceObjective(log)
