"""One training from its start to its last update: what it holds, which phases it runs, what it has to report."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from simic.contracts.config import TrainConfig
from simic.contracts.errors import ConfigError, ContractViolation, TrainingFailure
from simic.controllers.network import NetworkShape, PolicyNetwork, fit_normaliser
from simic.controllers.store import load_policy
from simic.learning.checkpoint import LearnerState, SamplerState, read_state
from simic.learning.learner import Learner
from simic.learning.losses import Targets
from simic.learning.phases import Record, cloning, fitted_scale, round_rows, value_fit, vtrace_passes
from simic.learning.rates import Schedule
from simic.learning.start import StartPoint
from simic.replay.sampler import PassSampler
from simic.replay.store import GraphStore
from simic.runtime.seeds import derive

__all__ = ["Session"]

OLD_SHARE = 1.0
"""In a round, earlier episodes per pass, as a share of the new ones, at most."""
FINAL_SHARE = 0.1
"""Of the learning rates at which a training begins, the share at which it ends."""
TRAINED_SHARE = 0.5
"""Share of the peak learning rates at which the training of an already trained policy begins, a round's or a
champion's: there is less to learn and something to lose."""
LEAST_VALUE_SCALE = 1e-3
"""Points; returns that do not vary at all still need a scale."""
_UNBOUNDED = 1 << 30


class Session:
    """Made by ``begin`` and run once; afterwards it holds the trained network and its figures."""

    def __init__(self, store: GraphStore, config: TrainConfig, learner: Learner, seed: int) -> None:
        self.store, self.config, self.learner = store, config, learner
        self._seed = seed
        self.germinated: tuple[str, ...] | None = store.germinated
        """Blueprints whose germination the policy has learned from; None where its past is not known."""
        self._sampler = self._new_sampler("vtrace", config.max_passes)
        self._cloning_passes, self._value_passes = 0, 0
        self._plan: list[NDArray[np.int64]] = [np.arange(len(store)) for _ in range(config.vtrace_passes)]
        self._round, self._advantage_scale = 0, 0.0
        self._first_share, self._warmup = 1.0, config.warmup_updates
        self._snapshots: list[str] = []
        self._before: dict[str, Tensor] = {}
        self._vtrace: list[dict[str, float]] = []

    @staticmethod
    def begin(store: GraphStore, config: TrainConfig, start: StartPoint | None, seed: int) -> Session:
        """Fresh, from another policy's weights, or where the last round ended."""
        if config.vtrace_passes > config.max_passes:
            raise ConfigError(
                f"train.vtrace_passes {config.vtrace_passes} exceeds train.max_passes {config.max_passes}"
            )
        if start is None:
            session = Session(store, config, Learner(_fresh_network(store, config, seed), config), seed)
            session._cloning_passes, session._value_passes = config.cloning_passes, config.value_passes
            return session
        network, earlier = _started_network(store, config, start)
        learner = Learner(network, config)
        session = Session(store, config, learner, seed)
        known = {*store.germinated, *(earlier or ())}
        session.germinated = None if earlier is None else tuple(name for name in store.blueprints if name in known)
        session._first_share = TRAINED_SHARE
        if start.is_continuation:
            session._go_on(start)
        return session

    def run(self) -> Iterator[Record]:
        """All phases; one record per update.

        The supervised ones only where training begins from nothing: fitting a trained policy's value to an old log anew
        would move what that policy reads, and so the policy. A fresh one is cloned first and moved by the value fit a
        little; the other order trained no better.
        """
        if not self._plan:
            raise TrainingFailure("no episode has a V-trace pass left: collect new ones or raise train.max_passes")
        yield from cloning(self.learner, self.store, self._uncounted("cloning"), self.config, self._cloning_passes)
        yield from value_fit(self.learner, self.store, self._uncounted("value_fit"), self.config, self._value_passes)
        if not self._round:
            self._advantage_scale = fitted_scale(self.learner, self.store, self.config.batch_sequences)
        config = self.config
        schedule, targets = self._schedule(), Targets.of(config, self._advantage_scale)
        for record in vtrace_passes(
            self.learner,
            self.store,
            self._sampler,
            self._plan,
            schedule,
            targets,
            min_commit_rate=config.min_commit_rate,
        ):
            self._vtrace.append(record.metrics)
            yield record

    @property
    def planned_updates(self) -> int:
        """Of the whole session."""
        supervised = (self._cloning_passes + self._value_passes) * self._updates_of(len(self.store))
        return supervised + self._vtrace_updates

    @property
    def episodes_seen(self) -> int:
        """Distinct training episodes this run has learned from by V-trace."""
        return int((self._counts > 0).sum())

    @property
    def mean_passes(self) -> float:
        """V-trace passes per episode seen."""
        return float(self._counts.sum() / max(1, self.episodes_seen))

    @property
    def final_metrics(self) -> dict[str, float]:
        """Means over the last pass."""
        last = self._vtrace[-self._updates_of(len(self._plan[-1])) :]
        return {
            **{name: float(np.mean([metrics[name] for metrics in last])) for name in last[0]},
            "advantage_scale": self._advantage_scale,
        }

    def state(self, snapshot_digest: str) -> LearnerState:
        """For the checkpoint."""
        return LearnerState(
            updates=self.learner.updates,
            rounds=self._round + 1,
            advantage_scale=self._advantage_scale,
            snapshots=[*self._snapshots, snapshot_digest],
            sampler=SamplerState(**self._sampler.get_state()),
        )

    def policy(self) -> PolicyNetwork:
        """What to act with: the running average over rounds, of which a round's weights replace ``1 - average``.

        Rounds of few episodes scatter, and what one round overdoes the next undoes (Polyak and Juditsky 1992).
        The training in front of the first round is no part of the average.
        """
        network = copy.deepcopy(self.learner.network)
        if self._round > 1:
            for name, parameter in network.named_parameters():
                parameter.data.lerp_(self._before[name], self.config.average)
        return network

    def _go_on(self, start: StartPoint) -> None:
        network = self.learner.network
        self._before = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
        state = read_state(start.path, network, self.learner.optimizer)
        self._sampler.set_state(state.sampler.model_dump())
        self._round, self._snapshots, self._warmup = state.rounds, state.snapshots, 0
        self._advantage_scale, self.learner.updates = state.advantage_scale, state.updates
        seed = derive(self._seed, "round", self._round)
        self._plan = round_rows(self.store, self._sampler, self.config.round_passes, OLD_SHARE, seed)

    def _schedule(self) -> Schedule:
        """From the first share of the peak to ``FINAL_SHARE`` of that; an optimiser that goes on needs no warm-up."""
        return Schedule(self._warmup, self._vtrace_updates, self._first_share, self._first_share * FINAL_SHARE)

    def _uncounted(self, phase: str) -> PassSampler:
        """Supervised passes do not wear an episode out."""
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


def _fresh_network(store: GraphStore, config: TrainConfig, seed: int) -> PolicyNetwork:
    """Untrained, with the snapshot's own feature statistics and value scale."""
    network = PolicyNetwork(NetworkShape.of(config.network, store.blueprints), seed=derive(seed, "network"))
    network.set_normaliser(fit_normaliser(store.statistics_graphs(), store.blueprints))
    returns = store.steps.returns.double()
    network.set_value_scale(float(returns.mean()), max(LEAST_VALUE_SCALE, float(returns.std(correction=0))))
    return network


def _started_network(
    store: GraphStore, config: TrainConfig, start: StartPoint
) -> tuple[PolicyNetwork, list[str] | None]:
    """A policy to go on from, and the blueprints it has learned about."""
    network, card = load_policy(start.path)
    if network.shape.blueprints != store.blueprints:
        raise ContractViolation(
            f"policy {start.path} knows blueprints {network.shape.blueprints}, the hosts offer {store.blueprints}: "
            "train a policy from nothing"
        )
    if card.set != store.set_name:
        raise ContractViolation(
            f"policy {start.path} was trained for the world {card.set!r}, the snapshot is of {store.set_name!r}: "
            "train a policy from nothing"
        )
    if card.network != config.network:
        raise ConfigError(f"train.network is {config.network!r}, the policy to start from has {card.network!r}")
    return network.train(), card.germinated
