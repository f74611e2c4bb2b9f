"""One training run: its start, its phases and its results."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from simic.contracts.config import TrainConfig
from simic.contracts.errors import ConfigError, ContractError, TrainingError
from simic.controllers.network import NetworkShape, PolicyNetwork, fit_normaliser
from simic.controllers.policy_files import load_policy
from simic.learning.checkpoint import LearnerState, SamplerState, read_state
from simic.learning.distillation import BranchedDecisions, branched_decisions, distillation, regrets, updates_of
from simic.learning.learner import Learner, LrSchedule
from simic.learning.losses import VTraceLossConfig
from simic.learning.phases import (
    Record,
    check_commit_rate,
    cloning,
    fitted_scale,
    logged_commit_rates,
    round_rows,
    value_fit,
    vtrace_passes,
)
from simic.replay.dataset import GraphDataset
from simic.replay.sampler import PassSampler
from simic.runtime.seeds import derive

__all__ = ["TrainingRun", "WarmStart"]


_LOG = logging.getLogger("simic.run")


class WarmStart(NamedTuple):
    """A sealed policy to start from."""

    path: Path
    is_continuation: bool
    """True: the next round of the run that made the policy, with its optimiser, learning rates and pass counts. False:
    take only weights, feature statistics and value scale. Optimiser and counts are new, the supervised phases are
    skipped, and the learning rate is that of a later round."""


OLD_SHARE = 1.0
"""Largest number of earlier episodes per pass of a round, as a share of the new ones."""
FINAL_SHARE = 0.1
"""Final learning rate as a share of the initial one."""
TRAINED_SHARE = 0.5
"""Initial share of the peak learning rates if training starts from a trained policy."""
LEAST_VALUE_SCALE = 1e-3
"""Least value scale in points, for returns that do not vary."""
_UNBOUNDED = 1 << 30


class TrainingRun:
    """A training run: made by ``begin`` and run once; afterwards it holds the trained network and its metrics."""

    def __init__(self, store: GraphDataset, config: TrainConfig, learner: Learner, seed: int) -> None:
        self.store, self.config, self.learner = store, config, learner
        self._seed = seed
        self.germinated: tuple[str, ...] | None = store.germinated
        """Blueprints that germinated in the training data; None if the start policy does not say."""
        self._sampler = self._new_sampler("vtrace", config.max_passes)
        self._cloning_passes, self._value_passes = 0, 0
        self._decisions = branched_decisions(store) if config.start == "distil" else None
        """Decisions to distil; None trains by V-trace."""
        rows = store.ordinary
        self._plan: list[NDArray[np.int64]] = [rows for _ in range(config.vtrace_passes if len(rows) else 0)]
        self._round = 0
        self._advantage_scale: float | None = None
        self._first_share, self._warmup = 1.0, config.warmup_updates
        self._snapshots: list[str] = []
        self._before: dict[str, Tensor] = {}
        self._final: dict[str, float] = {}

    @staticmethod
    def begin(store: GraphDataset, config: TrainConfig, start: WarmStart | None, seed: int) -> TrainingRun:
        """Start from scratch, from another policy's weights, or resume after the last round.

        Raises:
            ConfigError: for settings that contradict each other or the start policy.
            ContractError: if the start policy does not fit the data.
        """
        if config.vtrace_passes > config.max_passes:
            raise ConfigError(
                f"train.vtrace_passes {config.vtrace_passes} exceeds train.max_passes {config.max_passes}"
            )
        if start is None:
            training = TrainingRun(store, config, Learner(_fresh_network(store, config, seed), config), seed)
            if training._decisions is None:
                training._cloning_passes, training._value_passes = config.cloning_passes, config.value_passes
            return training
        network, earlier = _started_network(store, config, start)
        learner = Learner(network, config)
        training = TrainingRun(store, config, learner, seed)
        known = {*store.germinated, *(earlier or ())}
        training.germinated = None if earlier is None else tuple(name for name in store.blueprints if name in known)
        training._first_share = TRAINED_SHARE
        if start.is_continuation:
            training._resume(start)
        return training

    def run(self) -> Iterator[Record]:
        """Run all phases and yield one record per update.

        Supervised phases run only from scratch: refitting the value encoder of a trained policy would change the
        features its policy heads read. Cloning precedes the value fit; the reverse order was no better (ADR 9).
        """
        split = self._decisions
        if split is None and not self._plan:
            raise TrainingError("no episode has a V-trace pass left: collect new ones or raise train.max_passes")
        if split is None:
            cloned, fitted = self._uncounted("cloning"), self._uncounted("value_fit")
            yield from cloning(self.learner, self.store, cloned, self.config, self._cloning_passes)
            yield from value_fit(self.learner, self.store, fitted, self.config, self._value_passes)
            yield from self._vtrace()
            return
        yield from self._distil(split.learned)
        if self._plan and len(self.store.ordinary) >= self.config.batch_sequences:
            yield from self._vtrace_if_better(split.held_out)
        self._final |= regrets(self.learner.network, self.store, split.held_out)

    def _distil(self, decisions: BranchedDecisions) -> Iterator[Record]:
        """Distil the decisions, then check the commit rate on the episodes of the data set."""
        records = []
        for record in distillation(
            self.learner,
            self.store,
            decisions,
            passes=self.config.distil_passes,
            exploration=self.config.network.exploration,
            seed=derive(self._seed, "distillation", self._round),
        ):
            records.append(record.metrics)
            yield record
        rates = logged_commit_rates(self.learner.network, self.store, self.config.batch_sequences)
        check_commit_rate([rates], self.config.min_commit_rate)
        self._final = {**_means(records[-updates_of(decisions, 1) :]), **rates}

    def _vtrace(self) -> Iterator[Record]:
        """Run the planned V-trace passes, and add the metrics of the last one to the final metrics."""
        if self._advantage_scale is None:
            self._advantage_scale = fitted_scale(self.learner, self.store, self.config.batch_sequences)
        schedule, targets = self._schedule(), VTraceLossConfig.of(self.config, self._advantage_scale)
        records = []
        for record in vtrace_passes(
            self.learner,
            self.store,
            self._sampler,
            self._plan,
            schedule,
            targets,
            min_commit_rate=self.config.min_commit_rate,
        ):
            records.append(record.metrics)
            yield record
        last = _means(records[-self._updates_of(len(self._plan[-1])) :])
        self._final |= {**last, "advantage_scale": self._advantage_scale}

    def _vtrace_if_better(self, held_out: BranchedDecisions) -> Iterator[Record]:
        """Run V-trace on top of the distilled policy; undo it if it fails or the regret on held-out decisions rises."""
        learner, final = self.learner, dict(self._final)
        saved = copy.deepcopy((learner.network.state_dict(), learner.optimizer.state_dict(), self._sampler.get_state()))
        scale = self._advantage_scale
        before, failure = regrets(learner.network, self.store, held_out)["held_out_regret"], None
        try:
            yield from self._vtrace()
        except TrainingError as error:
            failure = error
        after = regrets(learner.network, self.store, held_out)["held_out_regret"]
        if failure is not None or not after <= before:
            _LOG.warning(
                "V-trace on top of the distilled policy is undone: %s",
                failure or f"it raised the regret on held-out decisions from {before:.3f} to {after:.3f} points",
            )
            learner.network.load_state_dict(saved[0])
            learner.optimizer.load_state_dict(saved[1])
            self._sampler.set_state(saved[2])
            self._advantage_scale, self._final = scale, final
        self._final |= {"regret_before_vtrace": before, "regret_after_vtrace": after}

    @property
    def planned_updates(self) -> int:
        """Return the number of updates of all phases."""
        if self._decisions is not None:
            return updates_of(self._decisions.learned, self.config.distil_passes) + self._vtrace_updates
        supervised = (self._cloning_passes + self._value_passes) * self._updates_of(len(self.store.ordinary))
        return supervised + self._vtrace_updates

    @property
    def episodes_seen(self) -> int:
        """Return the number of distinct episodes learned from: tried actions, or episodes of V-trace passes."""
        if self._decisions is not None:
            return self._decisions.episodes + int((self._counts > 0).sum())
        return int((self._counts > 0).sum())

    @property
    def mean_passes(self) -> float:
        """Return the mean number of passes per episode used."""
        distilled = 0 if self._decisions is None else self._decisions.episodes * self.config.distil_passes
        return float((distilled + self._counts.sum()) / max(1, self.episodes_seen))

    @property
    def final_metrics(self) -> dict[str, float]:
        """Return the means over the last pass of each phase; after a distillation also the regret on held-out hosts."""
        return self._final

    def state(self, snapshot_digest: str) -> LearnerState:
        """Return the learner state for the checkpoint."""
        return LearnerState(
            updates=self.learner.updates,
            rounds=self._round + 1,
            advantage_scale=self._advantage_scale,
            snapshots=[*self._snapshots, snapshot_digest],
            sampler=SamplerState(**self._sampler.get_state()),
        )

    def policy(self) -> PolicyNetwork:
        """Return the policy to act with: an exponential average over rounds with weight ``1 - average`` for the newest.

        Rounds of few episodes are noisy, and averaging reduces that noise (Polyak and Juditsky 1992). The training
        before the first round is not part of the average.
        """
        network = copy.deepcopy(self.learner.network)
        if self._round > 1 and self._decisions is None:
            for name, parameter in network.named_parameters():
                parameter.data.lerp_(self._before[name], self.config.average)
        return network

    def _resume(self, start: WarmStart) -> None:
        network = self.learner.network
        self._before = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
        state = read_state(start.path, network, self.learner.optimizer)
        self._sampler.set_state(state.sampler.model_dump())
        self._round, self._snapshots, self._warmup = state.rounds, state.snapshots, 0
        self._advantage_scale, self.learner.updates = state.advantage_scale, state.updates
        seed = derive(self._seed, "round", self._round)
        self._plan = round_rows(self.store, self._sampler, self.config.round_passes, OLD_SHARE, seed)

    def _schedule(self) -> LrSchedule:
        """Return the schedule from the first share to ``FINAL_SHARE`` of it; a resumed optimiser has no warm-up."""
        return LrSchedule(self._warmup, self._vtrace_updates, self._first_share, self._first_share * FINAL_SHARE)

    def _uncounted(self, phase: str) -> PassSampler:
        """Return a sampler for supervised passes, which do not count against ``max_passes``."""
        return self._new_sampler(phase, _UNBOUNDED)

    def _new_sampler(self, name: str, max_passes: int) -> PassSampler:
        return PassSampler(
            seed=derive(self._seed, name), batch_sequences=self.config.batch_sequences, max_passes=max_passes
        )

    @property
    def _counts(self) -> NDArray[np.int64]:
        return self._sampler.passes_of(self.store.sequences.run_ids)

    @property
    def _vtrace_updates(self) -> int:
        return sum(self._updates_of(len(rows)) for rows in self._plan)

    def _updates_of(self, episodes: int) -> int:
        return -(-episodes // self.config.batch_sequences)


def _fresh_network(store: GraphDataset, config: TrainConfig, seed: int) -> PolicyNetwork:
    """Return an untrained network with the data's feature statistics and value scale."""
    network = PolicyNetwork(NetworkShape.of(config.network, store.blueprints), seed=derive(seed, "network"))
    network.set_normaliser(fit_normaliser(store.statistics_graphs(), store.blueprints))
    returns = store.steps.returns.double()
    network.set_value_scale(float(returns.mean()), max(LEAST_VALUE_SCALE, float(returns.std(correction=0))))
    return network


def _started_network(
    store: GraphDataset, config: TrainConfig, start: WarmStart
) -> tuple[PolicyNetwork, list[str] | None]:
    """Return the start policy's network, and the blueprints that germinated in its training data."""
    network, card = load_policy(start.path)
    if network.shape.blueprints != store.blueprints:
        raise ContractError(
            f"policy {start.path} knows blueprints {network.shape.blueprints}, the hosts offer {store.blueprints}: "
            "train a policy from nothing"
        )
    if card.set != store.set_name:
        raise ContractError(
            f"policy {start.path} was trained for the world {card.set!r}, the snapshot is of {store.set_name!r}: "
            "train a policy from nothing"
        )
    if card.network != config.network:
        raise ConfigError(f"train.network is {config.network!r}, the policy to start from has {card.network!r}")
    return network.train(), card.germinated


def _means(records: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([metrics[name] for metrics in records])) for name in records[0]}
