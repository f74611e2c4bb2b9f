"""Objectives that make counted passes over a log with one loss, from scratch after supervised phases if they have any.

The supervised phases run only from scratch: refitting the value encoder of a trained policy would change the features
that its policy heads read. Cloning precedes the value fit; the reverse order was no better (ADR 9).
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.contracts.errors import ConfigError, TrainingError
from simic.learning.commit_rates import check_commit_rate, logged_commit_rates, measure_on_log, pooled_rates
from simic.learning.losses import Loss, off_policyness
from simic.learning.objective import LearningTask
from simic.learning.phases import (
    Record,
    cloning,
    fitted_scale,
    means,
    supervised_sampler,
    value_fit,
)
from simic.learning.prioritised_passes import PrioritisedPasses
from simic.learning.rates import LrSchedule
from simic.replay.batch import SequenceBatch
from simic.replay.live.prioritised import Draw, sequence_magnitudes
from simic.runtime.seeds import derive

__all__ = ["CountedPasses"]

_LOG = logging.getLogger(__name__)

FINAL_SHARE = 0.1
"""Final learning rate as a share of the initial one."""


class CountedPasses(ABC):
    """Runs the planned passes; an objective gives the loss and may leave updates out."""

    averages_rounds: ClassVar[bool] = True
    is_resumable: ClassVar[bool] = True
    phase: ClassVar[str]
    """Phase of the records."""
    has_supervised_phases: ClassVar[bool] = True
    """Whether an untrained policy clones and fits the value first."""
    rate_share: ClassVar[float] = 1.0
    """Factor on the learning rates of the passes."""

    def __init__(self, task: LearningTask) -> None:
        self.task, self.metrics = task, dict[str, float]()
        self.config = task.config
        """Settings of the present update: those of the task, with the entropy bonus as far as it has fallen."""
        self._prioritised: PrioritisedPasses | None = None
        self._scored: list[tuple[Tensor, Tensor]] = []

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

        An untrained policy without planned passes has only its supervised phases.

        Raises:
            TrainingError: if there is nothing to learn from and no round follows, or the commit rate falls too low.
        """
        store, learner, config, seed = self.task.store, self.task.learner, self.task.config, self.task.seed
        if not self.task.passes.plan and self.task.passes.may_be_empty:
            _LOG.info("no episode has a pass left: the policy stays as it is, and the next round trains it")
            return
        if not self.task.passes.plan:
            self._require_other_phases()
        if self._is_supervised:
            samplers = [supervised_sampler(config, seed, phase) for phase in ("cloning", "value_fit")]
            yield from cloning(learner, store, samplers[0], config, config.cloning_passes)
            yield from value_fit(learner, store, samplers[1], config, config.value_passes)
        if self.task.passes.plan:
            yield from self._passes()
        else:
            self.metrics = learner.history.value("on the log", self._on_the_log)
            check_commit_rate([self.metrics], config.min_commit_rate)

    def _require_other_phases(self) -> None:
        """Raise TrainingError unless a training without planned passes has supervised phases; the message says why."""
        store, config = self.task.store, self.task.config
        if not len(store.ordinary):
            raise TrainingError(
                "the snapshot holds no episode besides branches and what they repeat, and train.objective "
                f"{config.objective} needs others: collect episodes (`simic collect`), or set train.start to distil"
            )
        run_ids = [store.sequences.run_ids[row] for row in store.ordinary.tolist()]
        if not self.task.passes.sampler.passes_left(run_ids).any():
            raise TrainingError(
                f"no episode has a pass left: each has had train.max_passes {config.max_passes} passes of this policy "
                "and those that it started from; collect new episodes, raise train.max_passes, or start from nothing "
                "(`simic train --start nothing`)"
            )
        if not (self._is_supervised and config.cloning_passes + config.value_passes):
            raise TrainingError(
                "train.vtrace_passes is 0, and nothing else would be learned: cloning_passes and value_passes are for "
                "an untrained policy, and not for train.objective cloning; set train.vtrace_passes to 1 or more"
            )

    @torch.no_grad()
    def _on_the_log(self) -> dict[str, float]:
        """Return commit rates and importance ratios of the policy on ordinary episodes; no update measured them."""
        network, store, config = self.task.learner.network, self.task.store, self.task.config

        def ratios(batch: SequenceBatch) -> dict[str, Tensor]:
            distribution = batch.distribution(network.act(batch.steps), config.network.exploration)
            joint = batch.to_time_major(distribution.log_prob(batch.actions).joint)
            return off_policyness(batch.valid_only(joint - batch.log_prob_behaviour))

        return {
            **measure_on_log(store, store.ordinary, config.batch_sequences, ratios),
            **logged_commit_rates(network, store, config.batch_sequences),
        }

    def _passes(self) -> Iterator[Record]:
        state = self.task.passes
        scale = state.advantage_scale
        if scale is None:
            scale = self.task.learner.history.value("advantage_scale", self._fitted_scale)["advantage_scale"]
            state.advantage_scale = scale
        if self.task.config.sampling == "prioritised":
            self._prioritised = self._prioritise()
        first = state.first_share * self.rate_share
        schedule = LrSchedule(state.warmup, self._pass_updates, first, first * FINAL_SHARE)
        last, position, left_out = list[dict[str, float]](), 0, 0
        for number, planned in enumerate(state.plan):
            if self.begins(number, last):
                rows = planned if state.curriculum is None else state.curriculum.allowed(planned)
                seen = list[dict[str, float]]()
                for record in self._pass(number, rows, schedule, position, scale):
                    seen.append(record.metrics)
                    yield record
                left_out += self._updates_of(len(planned)) - len(seen)
                last = seen or last
            else:
                left_out += self._updates_of(len(planned))
            position += self._updates_of(len(planned))
        rates = pooled_rates(last) if last else {}
        self.metrics = {**means(last), **rates, "advantage_scale": scale, "updates_left_out": float(left_out)}

    def _fitted_scale(self) -> dict[str, float]:
        task = self.task
        return {"advantage_scale": fitted_scale(task.learner, task.store, task.config.batch_sequences)}

    def _prioritise(self) -> PrioritisedPasses:
        task = self.task
        return PrioritisedPasses(
            task.store.sequences.run_ids,
            task.passes.sampler,
            task.config.replay,
            batch=task.config.batch_sequences,
            updates=self._pass_updates,
            seed=derive(task.seed, "prioritised"),
            history=task.learner.history,
        )

    def _pass(
        self, number: int, rows: NDArray[np.int64], schedule: LrSchedule, position: int, advantage_scale: float
    ) -> Iterator[Record]:
        """Run one pass over the sequences ``rows``, at ``position`` of the schedule.

        Raises:
            TrainingError: if the policy has collapsed at its end.
        """
        task, seen, curriculum = self.task, list[dict[str, float]](), self.task.passes.curriculum
        for draw in self._draws(number, rows):
            self._anneal(position + len(seen))
            compute = partial(self._loss_of, draw, advantage_scale)
            metrics = task.learner.update(len(draw.rows), compute, schedule, position + len(seen))
            self._reprioritise(draw, advantage_scale)
            seen.append(metrics)
            if curriculum is not None:
                curriculum.record(metrics)
            yield Record(task.learner.updates, self.phase, metrics, number)
            if not self.goes_on(metrics):
                break
        if curriculum is not None:
            curriculum.end_pass()
        if seen:
            check_commit_rate(seen, task.config.min_commit_rate)

    def _draws(self, number: int, rows: NDArray[np.int64]) -> Iterator[Draw]:
        """Yield the batches of a pass; ``weights`` is empty if all sequences weigh alike."""
        if self._prioritised is not None:
            yield from self._prioritised.draw_pass(number, rows)
            return
        for ids in self.task.passes.sampler.draw_pass(self.task.store.sequences.run_ids, rows):
            yield Draw(ids, np.zeros(0, dtype=np.float32))

    def _anneal(self, position: int) -> None:
        """Set the entropy bonus at ``position`` of the updates of all passes."""
        config = self.task.config
        if config.entropy_bonus_last is None:
            return
        progress = min(1.0, position / max(1, self._pass_updates - 1))
        bonus = config.entropy_bonus + progress * (config.entropy_bonus_last - config.entropy_bonus)
        self.config = config.model_copy(update={"entropy_bonus": bonus})

    def _loss_of(self, draw: Draw, advantage_scale: float, part: slice) -> Loss:
        batch = self.task.store.batch(draw.rows[part])
        if self._prioritised is not None:
            batch = replace(batch, weights=torch.from_numpy(draw.weights[part]).to(batch.valid.device))
        loss = self.loss(batch, advantage_scale)
        if part.start == 0:  # the update begins, perhaps once more
            self._scored.clear()
        if loss.errors is not None:
            self._scored.append((loss.errors, batch.valid))
        return loss._replace(metrics={**loss.metrics, **self._progress(loss, batch, advantage_scale)})

    def _progress(self, loss: Loss, batch: SequenceBatch, advantage_scale: float) -> dict[str, Tensor]:
        """Return what falls or rises over the passes, as metrics of a part of an update."""
        metrics, curriculum = dict[str, Tensor](), self.task.passes.curriculum
        if self.config.entropy_bonus_last is not None:
            metrics["entropy_bonus"] = loss.total.new_full((), self.config.entropy_bonus)
        if curriculum is not None:
            if loss.errors is None:
                raise ConfigError(
                    f"train.curriculum needs the errors of values, which the loss of {self.phase} does not return: set "
                    "train.curriculum.enabled to false"
                )
            metrics |= curriculum.metrics(loss.errors, batch.valid, advantage_scale)
        return metrics

    def _reprioritise(self, draw: Draw, advantage_scale: float) -> None:
        """Set the priorities of the batch of an update that was made, and not repeated, in units of the scale."""
        if self._prioritised is None or not self._scored:
            return
        magnitudes = [
            sequence_magnitudes(errors.double().cpu().numpy() / advantage_scale, valid.cpu().numpy())
            for errors, valid in self._scored
        ]
        self._prioritised.update(draw.rows, np.concatenate(magnitudes))
        self._scored.clear()

    @property
    def planned_updates(self) -> int:
        """Return the number of updates of all phases if none is left out."""
        passes = self.task.config.cloning_passes + self.task.config.value_passes if self._is_supervised else 0
        return passes * self._updates_of(len(self.task.store.ordinary)) + self._pass_updates

    @property
    def episodes(self) -> int:
        """Return the number of episodes with a counted pass of this policy or of those that it started from.

        Of a policy that has only supervised phases it is the number of all ordinary episodes.
        """
        if self._is_supervised and not self.task.passes.plan:
            return len(self.task.store.ordinary)
        return int(np.count_nonzero(self._counts()))

    @property
    def passes(self) -> float:
        """Return the sum of the counted passes of all episodes."""
        return float(self._counts().sum())

    @property
    def _is_supervised(self) -> bool:
        return self.task.is_fresh and self.has_supervised_phases

    def _counts(self) -> NDArray[np.int64]:
        return self.task.passes.sampler.passes_of(self.task.store.sequences.run_ids)

    @property
    def _pass_updates(self) -> int:
        return sum(self._updates_of(len(rows)) for rows in self.task.passes.plan)

    def _updates_of(self, episodes: int) -> int:
        return -(-episodes // self.task.config.batch_sequences)
