"""One training run: its start, its phases and its results."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cached_property, reduce
from pathlib import Path
from typing import NamedTuple

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
from simic.learning.continual.memory import Memory, kept_anchor, memory_of, start_anchor
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


class TrainingRun:
    """A training run: made by ``begin`` and run once; afterwards it holds the trained network and its metrics."""

    def __init__(
        self, store: GraphDataset, config: TrainConfig, learner: Learner, seed: int, *, is_fresh: bool
    ) -> None:
        """Prepare a run; ``learner`` brings the history of a training that is resumed."""
        self.store, self.config, self.learner = store, config, learner
        self._seed, self._is_fresh = seed, is_fresh
        self.germinated: tuple[str, ...] | None = store.germinated
        """Blueprints that germinated in the training data; None if the start policy does not say."""
        self.feature_ranges: FeatureRanges | None = reduce(
            joined_ranges, (ranges_of(graphs, store.blueprints) for graphs in store.graphs())
        )
        """Ranges of the features in the training data, with those of the start policy; None if it does not say."""
        self._decisions = branched_decisions(store) if config.start == "distil" else None
        """Decisions to distil; None learns from the log."""
        if self._decisions is not None and not have_trained(store, self._decisions.learned.rows).all():
            learner.network.first_epoch_penalty.zero_()  # the branches tell when it pays not to wait
        rows = store.ordinary if self._decisions is None else without_held_out(store, self._decisions)
        self._ordinary = rows
        """Sequences that counted passes learn from."""
        self._passes = PassState(
            PassSampler(
                seed=derive(seed, "vtrace"), batch_sequences=config.batch_sequences, max_passes=config.max_passes
            ),
            [rows for _ in range(config.vtrace_passes if len(rows) else 0)],
            config.warmup_updates,
            curriculum=Curriculum(config.curriculum, store.difficulty) if config.curriculum.enabled else None,
        )
        self._round = 0
        self._snapshots: list[str] = []
        self._before: dict[str, Tensor] = {}
        self._final: dict[str, float] = {}
        self._held: Anchor | None = None
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
        if start is None:
            require_policy(config.lora)
            learner = Learner(fresh_network(store, config, seed), config, history)
            return TrainingRun(store, config, learner, seed, is_fresh=True)
        network, card = _started_network(store, config, start)
        before = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
        history = History() if history is None else history
        anchor = _anchor(network, store, config, start, seed, history) if config.ewc.weight else None
        if config.lora.rank:
            adapt(network, config.lora, history.generator("lora", derive(seed, "lora")))
        training = TrainingRun(store, config, Learner(network.to(store.device), config, history), seed, is_fresh=False)
        known = {*store.germinated, *(card.germinated or ())}
        is_known = card.germinated is not None
        training.germinated = tuple(name for name in store.blueprints if name in known) if is_known else None
        training.feature_ranges = _joined_if_known(card.feature_ranges, training.feature_ranges)
        training._passes.first_share = TRAINED_SHARE
        if anchor is not None:
            penalty = ElasticPenalty(config.ewc.weight, anchor, store.device)
            training._held, training.learner.penalty = anchor, penalty
        if start.is_continuation:
            training._before = before
            training._resume(start)
        else:
            training._carry_passes(start)
        return training

    def run(self) -> Iterator[Record]:
        """Run all phases and yield one record per update; then measure what a later training is to remember."""
        yield from self._phases()
        if self.config.ewc.weight:
            seed = derive(self._seed, "ewc", self._round)
            self.memory, samples = memory_of(self.policy(), self.store, self.config.ewc, self._held, seed)
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
        if split.measured is not None:
            self._final |= regrets(self.learner.network, self.store, split.measured)

    @cached_property
    def _objective(self) -> Objective:
        """The objective of the configuration; V-trace on top of a distillation."""
        is_alone = self._decisions is None
        seed = self._seed if self._round == 0 else derive(self._seed, "round", self._round)
        task = LearningTask(self.store, self.learner, self.config, seed, self._is_fresh and is_alone, self._passes)
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
            seed=derive(self._seed, "distillation", self._round),
            deviation=FEATURE_NOISE,
        ):
            records.append(record.metrics)
            yield record
        metrics = self.learner.history.value("distilled", lambda: self._distilled(decisions))
        check_commit_rate([metrics], self.config.min_commit_rate)
        self._final = {**means(records[-updates_of(decisions, 1) :]), **metrics}

    def _distilled(self, decisions: BranchedDecisions) -> dict[str, float]:
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
        kind, decisions = ("learned", split.learned) if split.measured is None else ("held-out", split.measured)
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
            if isinstance(error, DivergenceError) and not history.recoveries:
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
                parameter.data.lerp_(self._before[name], self.config.average)
        return network

    def _resume(self, start: WarmStart) -> None:
        state = read_state(start.path, self.learner.network, self.learner.optimizer)
        # Trainings of other seeds continue from the same policy, and pass over the episodes in another order.
        self._passes.sampler.set_state({**state.sampler.model_dump(), "seed": derive(self._seed, "vtrace")})
        if self._passes.curriculum is not None and state.curriculum is not None:
            self._passes.curriculum.state = state.curriculum
        self._passes.sampler.forget_others(self.store.sequences.run_ids)
        self._round, self._snapshots, self.learner.updates = state.rounds, state.snapshots, state.updates
        self._passes.advantage_scale = state.advantage_scale
        if self.learner.optimizer.state:  # a champion without passes left may not have moments
            self._passes.warmup = 0
        self._plan(self.config.round_passes, derive(self._seed, "round", self._round))

    def _carry_passes(self, start: WarmStart) -> None:
        """Plan passes over the episodes that have some left after those of the start policy's trainings."""
        self._passes.sampler.take_over(read_pass_counts(start.path))
        self._passes.sampler.forget_others(self.store.sequences.run_ids)
        self._plan(self.config.vtrace_passes, self._seed)
        self._passes.may_be_empty = start.has_rounds

    def _plan(self, passes: int, seed: int) -> None:
        state = self._passes
        state.plan = round_rows(self.store, self._ordinary, state.sampler, passes, self.config.replay_ratio, seed)


def _anchor(
    network: PolicyNetwork, store: GraphDataset, config: TrainConfig, start: WarmStart, seed: int, history: History
) -> Anchor | None:
    """Return what a start policy holds the training to; a checkpoint of the training has it too."""
    is_continuation, own = start.is_continuation, derive(seed, "ewc start")
    anchor = start_anchor(start.path, network, store, config.ewc, own, is_continuation=is_continuation)
    return None if anchor is None else kept_anchor(anchor, history)


def _joined_if_known(one: FeatureRanges | None, other: FeatureRanges | None) -> FeatureRanges | None:
    return None if one is None or other is None else joined_ranges(one, other)


def _started_network(store: GraphDataset, config: TrainConfig, start: WarmStart) -> LoadedPolicy:
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
