"""One training run: its start, its phases and its results."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import cached_property, reduce
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from simic.contracts.errors import ConfigError, ContractError, DivergenceError, TrainingError
from simic.contracts.feature_ranges import FeatureRanges
from simic.contracts.settings.continual import StageVisit, require_policy
from simic.contracts.settings.training import TrainConfig
from simic.controllers.feature_ranges import joined_ranges, ranges_of
from simic.controllers.network import PolicyNetwork
from simic.controllers.policy_files import LoadedPolicy, load_policy
from simic.learning.commit_rates import check_commit_rate, logged_commit_rates
from simic.learning.continual.curriculum import Curriculum
from simic.learning.continual.ewc import Anchor, ElasticPenalty
from simic.learning.continual.lora import adapt, merged
from simic.learning.continual.memory import Memory, keep_anchor, memory_of, start_anchor
from simic.learning.counted_passes import CountedPasses
from simic.learning.distillation import (
    FEATURE_NOISE,
    BranchedDecisions,
    DecisionSplit,
    branched_decisions,
    distillation,
    have_trained,
    regrets,
    updates_of,
    without_held_out,
)
from simic.learning.history import History, optimizer_tensors, restore_optimizer
from simic.learning.learner import Learner
from simic.learning.learner_state import LearnerState, SamplerState, read_pass_counts, read_state
from simic.learning.objective import LearningTask, Objective, PassState
from simic.learning.objectives import OBJECTIVES
from simic.learning.phases import Record, fresh_network, means, round_rows
from simic.learning.safety.guard import Guard
from simic.replay.dataset import GraphDataset
from simic.replay.sampler import PassSampler
from simic.runtime.seeds import derive

__all__ = ["TrainingRun", "WarmStart"]


_LOG = logging.getLogger(__name__)


class WarmStart(NamedTuple):
    """A sealed policy to start from."""

    path: Path
    is_continuation: bool
    """True: the next round of the run that made the policy, with its optimiser and learning rates. False: take only
    weights, feature statistics, value scale and pass counts. The optimiser is new, the supervised phases are skipped,
    and the learning rate is that of a later round."""
    has_rounds: bool = False
    """Whether rounds of new episodes follow in the same run. Then a policy without passes left stays as it is, and the
    first round trains it; otherwise the training is refused."""


TRAINED_SHARE = 0.5
"""Initial share of the peak learning rates if training starts from a trained policy."""
VTRACE = "vtrace"
"""Objective on top of a distillation."""


class Lineage(NamedTuple):
    """State of earlier trainings from which a run continues, and what its policy's card says of the data of all."""

    germinated: tuple[str, ...] | None
    """Blueprints that germinated in the data so far, this run's included; None if the start policy does not say."""
    feature_ranges: FeatureRanges | None
    """Ranges of the features in the same data; None if the start policy does not say."""
    start: WarmStart | None = None
    """The start policy; None begins with random weights."""
    state: LearnerState | None = None
    """Counters, sampler, advantage scale and curriculum of the round before; None unless this is a further round."""
    weights: Mapping[str, Tensor] = {}
    """Parameters of the start policy by name, with which the policy of a further round is averaged."""
    anchor: Anchor | None = None
    """Weights to which elastic weight consolidation holds the training, on the CPU; None without it."""


class TrainingRun:
    """A training run: made by ``begin`` and run once; afterwards it holds the trained network and its metrics."""

    def __init__(
        self, task: LearningTask, lineage: Lineage, decisions: DecisionSplit | None, ordinary: NDArray[np.int64]
    ) -> None:
        """Take what ``begin`` has prepared: decisions to distil, if any, and the sequences of counted passes."""
        self._task, self._lineage, self._decisions, self._ordinary = task, lineage, decisions, ordinary
        self.store, self.config, self.learner, self._passes = task.store, task.config, task.learner, task.passes
        self.germinated, self.feature_ranges = lineage.germinated, lineage.feature_ranges
        state = lineage.state
        self._round, self._snapshots = (0, []) if state is None else (state.rounds, state.snapshots)
        self._final: dict[str, float] = {}
        self.memory: Memory | None = None
        """What a later training needs in order not to forget this one, after ``run``; None without ``train.ewc``."""

    @staticmethod
    def begin(
        store: GraphDataset, config: TrainConfig, start: WarmStart | None, seed: int, history: History | None = None
    ) -> TrainingRun:
        """Start from scratch, from another policy's weights, or from the last round; ``history`` repeats what was done.

        Raises:
            ConfigError: for settings that contradict each other or the start policy.
            ContractError: if the start policy does not fit the data.
        """
        if config.vtrace_passes > config.max_passes:
            raise ConfigError(
                f"train.vtrace_passes {config.vtrace_passes} exceeds train.max_passes {config.max_passes}"
            )
        history = History(guard=Guard(config)) if history is None else history
        if start is None:
            require_policy(config.lora)
            learner = Learner(fresh_network(store, config, seed), config, history)
            lineage = Lineage(store.germinated, _feature_ranges(store))
        else:
            learner, lineage = _take_over(store, config, start, seed, history)
        decisions = branched_decisions(store) if config.start == "distil" else None
        if decisions is not None and not have_trained(store, decisions.learned.rows).all():
            learner.network.first_epoch_penalty.zero_()  # the branches tell when it pays not to wait
        ordinary = store.ordinary if decisions is None else without_held_out(store, decisions)
        passes = _planned_passes(store, learner, lineage, ordinary, config, seed)
        task = LearningTask(store, learner, config, seed, is_fresh=start is None, passes=passes)
        return TrainingRun(task, lineage, decisions, ordinary)

    def run(self) -> Iterator[Record]:
        """Run all phases and yield one record per update; then measure what a later training is to remember."""
        yield from self._phases()
        if self.config.ewc.weight:
            seed, anchor = derive(self._task.seed, "ewc", self._round), self._lineage.anchor
            self.memory, samples = memory_of(self.policy(), self.store, self.config.ewc, anchor, seed)
            self._final["ewc_samples"] = float(samples)

    def _phases(self) -> Iterator[Record]:
        split = self._decisions
        if split is None:
            yield from self._objective.run()
            self._final |= self._objective.metrics
            return
        yield from self._distil(split.learned)
        if self._has_vtrace:
            yield from self._vtrace_if_better(split)
        elif self.config.curriculum.enabled:
            _LOG.warning("train.curriculum has no effect, because no V-trace follows the distillation: %s", self._lack)
        if split.held_out_if_enough is not None:
            self._final |= regrets(self.learner.network, self.store, split.held_out_if_enough)

    @cached_property
    def _objective(self) -> Objective:
        """The objective of the configuration; V-trace on top of a distillation."""
        is_alone = self._decisions is None
        seed = self._task.seed if self._round == 0 else derive(self._task.seed, "round", self._round)
        task = self._task._replace(seed=seed, is_fresh=self._task.is_fresh and is_alone)
        name = self.config.objective if is_alone else VTRACE
        objective: Objective = OBJECTIVES.load(name).begin(task)
        if self.config.curriculum.enabled and not isinstance(objective, CountedPasses):
            raise ConfigError(
                f"train.curriculum has no effect on train.objective {name}, which makes no counted passes: set "
                "train.curriculum.enabled to false, or take vtrace, ppo or awr"
            )
        return objective

    @property
    def _has_vtrace(self) -> bool:
        """Whether V-trace follows the distillation."""
        return bool(self._passes.plan) and len(self._ordinary) >= self.config.batch_sequences

    @property
    def _lack(self) -> str:
        """Why no V-trace follows the distillation."""
        if len(self._ordinary) < self.config.batch_sequences:
            return (
                f"the snapshot has {len(self._ordinary)} episodes besides branches and what they repeat, on hosts that "
                f"are not held out, fewer than train.batch_sequences {self.config.batch_sequences}"
            )
        return "no episode besides branches has a pass left (train.vtrace_passes, round_passes and max_passes)"

    def _distil(self, decisions: BranchedDecisions) -> Iterator[Record]:
        """Distil the decisions, then check the commit rate on the episodes of the data set."""
        records = []
        for record in distillation(
            self.learner,
            self.store,
            decisions,
            passes=self.config.distil_passes,
            exploration=self.config.network.exploration,
            seed=derive(self._task.seed, "distillation", self._round),
            deviation=FEATURE_NOISE,
        ):
            records.append(record.metrics)
            yield record
        metrics = self.learner.history.value("distilled", lambda: self._distilled_metrics(decisions))
        check_commit_rate([metrics], self.config.min_commit_rate)
        self._final = {**means(records[-updates_of(decisions, 1) :]), **metrics}

    def _distilled_metrics(self, decisions: BranchedDecisions) -> dict[str, float]:
        """Return what the distilled policy does, without the noise of training that the records have."""
        rates = logged_commit_rates(self.learner.network, self.store, self.config.batch_sequences)
        metrics = regrets(self.learner.network, self.store, decisions)
        return {
            "expected_regret": metrics["held_out_regret"],
            "greedy_regret": metrics["held_out_greedy_regret"],
            **rates,
        }

    def _vtrace_if_better(self, split: DecisionSplit) -> Iterator[Record]:
        """Run V-trace on top of the distilled policy; undo it if it fails or the regret on held-out decisions rises.

        If too few hosts are held out, the regret on the learned decisions must not rise.
        """
        held_out = split.held_out_if_enough
        kind, decisions = ("learned", split.learned) if held_out is None else ("held-out", held_out)
        learner, state, history = self.learner, self._passes, self.learner.history
        weights = history.keep("distilled", learner.network.state_dict)
        moments = history.keep("distilled moments", lambda: optimizer_tensors(learner))
        counts, scale, failure = state.sampler.get_state(), state.advantage_scale, None
        stage = None if state.curriculum is None else state.curriculum.state
        measured = history.value("before vtrace", lambda: regrets(learner.network, self.store, decisions))
        before = measured["held_out_regret"]
        try:
            yield from self._objective.run()
        except TrainingError as error:
            if isinstance(error, DivergenceError) and not history.guard.recoveries:
                raise
            failure = error
        after = regrets(learner.network, self.store, decisions)["held_out_regret"]
        if failure is None and after <= before:
            self._final |= self._objective.metrics
        else:
            _LOG.warning(
                "V-trace on top of the distilled policy is undone: %s",
                failure or f"it raised the regret on {kind} decisions from {before:.3f} to {after:.3f} points",
            )
            learner.network.load_state_dict(weights)
            restore_optimizer(learner, moments)
            state.sampler.set_state(counts)
            state.advantage_scale = scale
            if state.curriculum is not None and stage is not None:
                state.curriculum.state = stage
        self._final |= {"regret_before_vtrace": before, "regret_after_vtrace": after}

    @property
    def is_resumable(self) -> bool:
        """Return whether the objective runs again in the same way from the metrics of its updates (``history``).

        An objective of another package that does not say so cannot.
        """
        return getattr(self._objective, "is_resumable", False)

    @property
    def planned_updates(self) -> int:
        """Return the number of updates of all phases."""
        if self._decisions is not None:
            distilled = updates_of(self._decisions.learned, self.config.distil_passes)
            return distilled + (self._objective.planned_updates if self._has_vtrace else 0)
        return self._objective.planned_updates

    @property
    def episodes_seen(self) -> int:
        """Return the number of distinct episodes learned from: tried actions, or those that the objective used."""
        return (0 if self._decisions is None else self._decisions.episodes) + self._objective.episodes

    @property
    def mean_passes(self) -> float:
        """Return the mean number of passes per episode used."""
        distilled = 0 if self._decisions is None else self._decisions.episodes * self.config.distil_passes
        return float((distilled + self._objective.passes) / max(1, self.episodes_seen))

    @property
    def final_metrics(self) -> dict[str, float]:
        """Return the means over the last pass of each phase, and the regret on held-out hosts if there are enough."""
        return self._final

    @property
    def stages(self) -> list[StageVisit]:
        """Return the stages of the curriculum so far; empty without one."""
        return [] if self._passes.curriculum is None else self._passes.curriculum.visits

    def state(self, snapshot_digest: str) -> LearnerState:
        """Return the learner state for the checkpoint."""
        return LearnerState(
            updates=self.learner.updates,
            rounds=self._round + 1,
            advantage_scale=self._passes.advantage_scale,
            snapshots=[*self._snapshots, snapshot_digest],
            sampler=SamplerState(**self._passes.sampler.get_state()),
            curriculum=None if (curriculum := self._passes.curriculum) is None else curriculum.state,
        )

    def policy(self) -> PolicyNetwork:
        """Return the policy to act with: an exponential average over rounds with weight ``1 - average`` for the newest.

        Rounds of few episodes are noisy, and averaging reduces that noise (Polyak and Juditsky 1992). The training
        before the first round is not part of the average. Adapters are merged. The policy lies on the CPU.
        """
        network = merged(self.learner.network).cpu()
        if self._round > 1 and self._decisions is None and self._objective.averages_rounds:
            for name, parameter in network.named_parameters():
                parameter.data.lerp_(self._lineage.weights[name], self.config.average)
        return network


def _take_over(
    store: GraphDataset, config: TrainConfig, start: WarmStart, seed: int, history: History
) -> tuple[Learner, Lineage]:
    """Return a learner with the weights of a policy, and its optimiser and counter if this is a further round."""
    network, card = _load_start(store, config, start)
    weights = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    anchor = _anchor(network, store, config, start, seed, history) if config.ewc.weight else None
    if config.lora.rank:
        adapt(network, config.lora, history.generator("lora", derive(seed, "lora")))
    penalty = None if anchor is None else ElasticPenalty(config.ewc.weight, anchor, store.device)
    learner = Learner(network.to(store.device), config, history, penalty=penalty)
    state = read_state(start.path, learner.network, learner.optimizer) if start.is_continuation else None
    if state is not None:
        learner.updates = state.updates
    known = None if card.germinated is None else {*store.germinated, *card.germinated}
    germinated = None if known is None else tuple(name for name in store.blueprints if name in known)
    ranges = _joined_if_known(card.feature_ranges, _feature_ranges(store))
    return learner, Lineage(germinated, ranges, start, state, weights, anchor)


def _planned_passes(
    store: GraphDataset,
    learner: Learner,
    lineage: Lineage,
    ordinary: NDArray[np.int64],
    config: TrainConfig,
    seed: int,
) -> PassState:
    """Plan passes over the sequences ``ordinary`` that have some left after those of earlier trainings."""
    start, state = lineage.start, lineage.state
    sampler = PassSampler(
        seed=derive(seed, "vtrace"), batch_sequences=config.batch_sequences, max_passes=config.max_passes
    )
    curriculum = Curriculum(config.curriculum, store.difficulty) if config.curriculum.enabled else None
    passes, own_seed = config.vtrace_passes, seed
    if state is not None:
        # Trainings of other seeds continue from the same policy, and pass over the episodes in another order.
        sampler.set_state({**state.sampler.model_dump(), "seed": derive(seed, "vtrace")})
        if curriculum is not None and state.curriculum is not None:
            curriculum.state = state.curriculum
        passes, own_seed = config.round_passes, derive(seed, "round", state.rounds)
    elif start is not None:
        sampler.take_over(read_pass_counts(start.path))
    sampler.forget_others(store.sequences.run_ids)
    return PassState(
        sampler,
        round_rows(store, ordinary, sampler, passes, config.replay_ratio, own_seed),
        # Moments of the round before need none; a champion without passes left may not have them.
        warmup=0 if learner.optimizer.state else config.warmup_updates,
        first_share=1.0 if start is None else TRAINED_SHARE,
        advantage_scale=None if state is None else state.advantage_scale,
        curriculum=curriculum,
        may_be_empty=start is not None and state is None and start.has_rounds,
    )


def _anchor(
    network: PolicyNetwork, store: GraphDataset, config: TrainConfig, start: WarmStart, seed: int, history: History
) -> Anchor | None:
    """Return what a start policy holds the training to; a checkpoint of the training has it too."""
    is_continuation, own = start.is_continuation, derive(seed, "ewc start")
    anchor = start_anchor(start.path, network, store, config.ewc, own, is_continuation=is_continuation)
    return None if anchor is None else keep_anchor(anchor, history)


def _feature_ranges(store: GraphDataset) -> FeatureRanges:
    return reduce(joined_ranges, (ranges_of(graphs, store.blueprints) for graphs in store.graphs()))


def _joined_if_known(one: FeatureRanges | None, other: FeatureRanges | None) -> FeatureRanges | None:
    return None if one is None or other is None else joined_ranges(one, other)


def _load_start(store: GraphDataset, config: TrainConfig, start: WarmStart) -> LoadedPolicy:
    """Return the start policy; a learner sets its mode."""
    network, card = load_policy(start.path)
    if network.shape.blueprints != store.blueprints:
        raise ContractError(
            f"policy {start.path} knows blueprints {network.shape.blueprints}, the hosts offer {store.blueprints}: "
            "train a policy from nothing"
        )
    if set(card.set.split("+")).isdisjoint(store.sets):
        raise ContractError(
            f"policy {start.path} was trained on hosts of {card.set}, the snapshot has only hosts of "
            f"{', '.join(store.sets)}: train a policy from nothing"
        )
    if card.network != config.network:
        raise ConfigError(f"train.network is {config.network!r}, the policy to start from has {card.network!r}")
    return LoadedPolicy(network, card)
