"""The attempts at one training: from its beginning or a checkpoint, and again after a failure.

A training that diverges goes back to its newest checkpoint once, with half the learning rates; one that runs out of
memory goes back to it in conservative mode; one that is hopeless ends where it is.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from simic.contracts.errors import (
    CircuitOpenError,
    ContractError,
    DivergenceError,
    HopelessError,
    OutOfMemoryError,
)
from simic.contracts.settings.safety import TrainingStop, Trigger
from simic.contracts.settings.training import TrainConfig
from simic.learning.checkpoints import Checkpoint, Checkpoints
from simic.learning.history import History
from simic.learning.limits import TrainingLimits
from simic.learning.output import TrainingOutput
from simic.learning.phases import Record
from simic.learning.safety.breaker import Breakers
from simic.learning.safety.guard import Guard
from simic.learning.safety.memory import out_of_memory_typed
from simic.learning.safety.probe import PolicyProbe
from simic.learning.safety.watchdog import Watchdog
from simic.learning.training_run import TrainingRun
from simic.runtime.telemetry import JsonLinesSink, TrainingObserver, Update

__all__ = ["PROGRESS_TOTAL", "Attempts"]

_LOG = logging.getLogger(__name__)
PROGRESS_TOTAL = 100
"""Unit of ``on_progress``: per cent."""


class Attempts:
    """Runs a training to its end, from the beginning, from a checkpoint, and again after a divergence."""

    def __init__(
        self,
        config: TrainConfig,
        checkpoints: Checkpoints,
        output: TrainingOutput,
        observer: TrainingObserver,
        on_progress: Callable[[int], None] | None,
    ) -> None:
        self._config, self._checkpoints, self._output, self._observer = config, checkpoints, output, observer
        self._on_progress, self._reported = on_progress, 0
        self._breakers = Breakers(config.safety.breakers)
        self._began_s, self._open_s = time.perf_counter(), 0.0
        """When the update in progress began, and for how long breakers had been open by then."""
        self._made = 0
        """The newest update of the attempt, made or repeated."""
        self._failed_at: int | None = None
        """The update that failed last, or the one ahead of which training failed; None once it was made."""
        self.guard = Guard(config, self._breakers)
        """Guard of the attempt that is made, or was the last."""
        self.stopped: TrainingStop | None = None
        """Why and where the training ended early; None if it finished."""

    def run(self, begin: Callable[[History], TrainingRun], checkpoint: Checkpoint | None) -> TrainingRun:
        """Return the training once it has finished, or ended early because it is hopeless."""
        recoveries = 0 if checkpoint is None else checkpoint.state.recoveries
        spent_s = 0.0 if checkpoint is None else checkpoint.state.elapsed_s
        limits = TrainingLimits(self._config.max_hours, self._config.max_memory_gb, spent_s)
        has_begun_again = is_short_of_memory = False
        while True:
            self.guard = Guard(self._config, self._breakers, recoveries)
            history = History(None if checkpoint is None else checkpoint.content, self.guard)
            training = begin(history)
            try:
                with self._output.open_curves(self._checkpoints, checkpoint) as curves, out_of_memory_typed("training"):
                    self._run(training, curves, limits, is_short_of_memory=is_short_of_memory)
            except ContractError as error:
                # Only a repetition can be at fault; a second begin would diverge and fail to repeat without end.
                if checkpoint is None or has_begun_again or history.done > history.covered:
                    raise
                _LOG.warning("training begins again: %s", error)
                checkpoint, recoveries, has_begun_again = None, 0, True
            except DivergenceError as error:
                if recoveries:
                    raise DivergenceError(f"training diverged again with halved learning rates: {error}") from error
                self._failed_at = self._made + 1
                self._breakers.learner.failed(error)
                checkpoint, recoveries = self._checkpoints.store_recovery(), 1
                place = _place(checkpoint)
                _LOG.warning("training diverged and goes on from %s with halved learning rates: %s", place, error)
            except HopelessError as error:
                self.stopped = self._stop_of(training, error)
                _LOG.warning("%s", self.stopped.detail)
                return training
            except OutOfMemoryError as error:
                self._failed_at = self._made + 1
                self._failed_for_memory(error)
                checkpoint, is_short_of_memory = self._checkpoints.newest(), True
                _LOG.warning("training goes on from %s in conservative mode: %s", _place(checkpoint), error)
            else:
                return training

    def _stop_of(self, training: TrainingRun, error: HopelessError) -> TrainingStop:
        """Return why a training ended early."""
        if self.guard.stop is None:
            raise error
        return TrainingStop(
            **self.guard.stop._asdict(),
            updates=training.learner.history.done,
            planned_updates=training.planned_updates,
        )

    def _failed_for_memory(self, error: OutOfMemoryError) -> None:
        """Count an update without memory; raise OutOfMemoryError if its breaker stays open."""
        try:
            self._breakers.learner.failed(error)
        except CircuitOpenError as last:
            raise OutOfMemoryError(str(last)) from error

    def _run(
        self, training: TrainingRun, curves: JsonLinesSink, limits: TrainingLimits, *, is_short_of_memory: bool
    ) -> None:
        planned, history = max(1, training.planned_updates), training.learner.history
        safety, timeout_s = self._config.safety, self._config.safety.update_timeout_s
        network, exploration = training.learner.network, self._config.network.exploration
        probe = PolicyProbe(training.store, network, safety.anomalies, exploration)
        self._made = 0
        limits.check()
        with Watchdog(timeout_s) as watchdog:
            self._prepare(history, probe, is_short_of_memory=is_short_of_memory)
            self._began_s = time.perf_counter()
            for record in training.run():
                self._made = history.done
                if history.done > history.covered:
                    self._keep(training, record, probe, curves, limits)
                else:
                    self.guard.repeat(record.phase, record.number, history.recorded)
                self._prepare(history, probe, is_short_of_memory=is_short_of_memory)
                self._report(PROGRESS_TOTAL * history.done // planned)
                watchdog.reset(timeout_s * self.guard.allowance.timeout_factor)
                self._began_s = time.perf_counter()
        history.require_finite()
        self._report(PROGRESS_TOTAL)  # also of updates that were left out

    def _prepare(self, history: History, probe: PolicyProbe, *, is_short_of_memory: bool) -> None:
        """Prepare the next update, unless it is repeated."""
        if history.is_repeating:
            return
        if is_short_of_memory and history.done == history.covered:
            self.guard.become_conservative(Trigger.OUT_OF_MEMORY)
        probe.prepare(history.done + 1)

    def _keep(
        self, training: TrainingRun, record: Record, probe: PolicyProbe, curves: JsonLinesSink, limits: TrainingLimits
    ) -> None:
        """Judge and log an update that was made, check the limits, and write a checkpoint where one is due."""
        history, every, storage = training.learner.history, self._every(training), self._breakers.storage
        if self._failed_at is not None and history.done >= self._failed_at:
            self._breakers.learner.succeeded()
            self._failed_at = None
        has_pressure = limits.memory_share > self._config.safety.conservative.max_memory_share
        metrics = self.guard.observe(
            record.phase, record.number, record.metrics, probe.measure(), has_pressure=has_pressure
        )
        storage.call(lambda: curves.log(record.update, metrics))  # never left out: a resumed training repeats it
        self._observe(record, metrics)
        limits.check()
        if every and history.done % every == 0:
            self._write_checkpoint(history, limits)

    def _observe(self, record: Record, metrics: Mapping[str, float]) -> None:
        """Tell the observer of an update."""
        open_s = self._breakers.open_s
        time_ms, open_ms = 1000.0 * (time.perf_counter() - self._began_s), 1000.0 * (open_s - self._open_s)
        self._observer.update(Update(record.update, record.phase, metrics, time_ms, open_ms))
        self._open_s = open_s

    def _write_checkpoint(self, history: History, limits: TrainingLimits) -> None:
        """Write a checkpoint, or leave it out: then a killed training has to go back to the one before."""
        while True:
            try:
                self._checkpoints.write(history, limits.elapsed_s)
            except OSError as error:
                if not self._breakers.storage.failed(error):
                    return
            else:
                self._breakers.storage.succeeded()
                return

    def _every(self, training: TrainingRun) -> int:
        """Return the number of updates between checkpoints, 0 for none."""
        return self._config.checkpoint_updates if training.is_resumable else 0

    def _report(self, percent: int) -> None:
        percent = min(PROGRESS_TOTAL, percent)
        if self._on_progress is not None and percent > self._reported:
            self._on_progress(percent - self._reported)
            self._reported = percent


def _place(checkpoint: Checkpoint | None) -> str:
    return "the beginning" if checkpoint is None else f"checkpoint {checkpoint.path.name}"
