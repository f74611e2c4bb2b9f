"""``fitted_q``: regression of returns on states and actions, then a policy that prefers what the regression prefers.

Behaviour is cloned first, which gives the log's action probabilities in every state. An ensemble of Q-functions is
fitted to the returns to go (``q_functions``); this is the first iteration of fitted Q iteration (Ernst et al. 2005,
section 3), with the behaviour's own returns in place of a bootstrap, so no maximum over noisy values is ever a target.
The policy is then distilled from the advantages of the supported actions, with the loss that learns from branches
(``distillation``): expected regret minus temperature times entropy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from simic.contracts.errors import ConfigError, TrainingError
from simic.contracts.settings.training import TrainConfig
from simic.controllers.network import PolicyNetwork
from simic.learning import q_functions
from simic.learning.commit_rates import check_commit_rate, logged_commit_rates
from simic.learning.distillation import BATCH as DISTIL_BATCH
from simic.learning.distillation import BranchedDecisions, distillation, have_trained, updates_of
from simic.learning.learner import Learner
from simic.learning.losses import explained_variance
from simic.learning.objective import LearningTask
from simic.learning.phases import (
    Record,
    cloning,
    fresh_network,
    means,
    supervised_sampler,
)
from simic.numerics.ragged import concatenated_ranges
from simic.replay.dataset import GraphDataset
from simic.runtime.seeds import derive, generator

__all__ = ["NAME", "SUMMARY", "FittedQObjective", "begin"]

NAME = "fitted_q"
SUMMARY = "regression of returns on states and actions, then distillation"

FOLDS = 4
"""Number of Q-functions; each leaves out the hosts of one fold."""
MOST_DECISIONS = 6000
"""Largest number of states from which the policy is distilled."""
EMPTY = np.zeros(0, dtype=np.int64)


class _Rows(NamedTuple):
    """Steps of the log, as rows of the data set."""

    decisions: NDArray[np.int64]
    """Steps of hosts that have trained an epoch, at which some operation besides WAIT was legal."""
    folds: NDArray[np.int64]
    """Fold of the host of each of them."""


class FittedQObjective:
    """Learns from all ordinary episodes in every round; nothing of it but the policy outlives a round."""

    averages_rounds, is_resumable = False, True

    def __init__(self, task: LearningTask) -> None:
        self._task, self.metrics = task, dict[str, float]()
        self._rows = _rows_of(task.store)

    def run(self) -> Iterator[Record]:
        """Clone, fit the Q-functions, distil them, and yield one record per update.

        Raises:
            TrainingError: if no decision can be learned from, no host can be left out, or the commit rate falls too
                low.
        """
        task, decisions = self._task, self._rows.decisions
        if not len(decisions):
            raise TrainingError(
                "no ordinary episode has a decision after its host's first epoch: collect episodes that are no branches"
            )
        if len(np.unique(self._rows.folds)) < 2:
            raise TrainingError("all hosts of the log are in one fold, so none is left out: collect more hosts")
        cloned = task.learner if task.is_fresh else self._scratch_learner("behaviour", task.config)
        sampler = supervised_sampler(task.config, task.seed, "cloning")
        phase = cloning(cloned, task.store, sampler, task.config, task.config.cloning_passes)
        yield from self._number_on(cloned, phase)
        history = task.learner.history
        behaviour = history.frozen("behaviour", cloned.network)
        if cloned is not task.learner:
            history.drop_learner("behaviour")
        networks = []
        for fold in range(FOLDS):
            learner = self._scratch_learner(f"q {fold}", q_functions.q_config(task.config))
            rows = self._fold_rows(behaviour, fold)
            fit = q_functions.fit(learner, task.store, rows, task.config.q_updates, derive(task.seed, "fit", fold))
            yield from self._number_on(learner, fit)
            networks.append(history.frozen(f"q {fold}", learner.network))
            history.drop_learner(f"q {fold}")
        yield from self._distil(networks, behaviour)
        self.metrics["q_explained_variance"] = self._explained_share(networks)

    def _scratch_learner(self, name: str, config: TrainConfig) -> Learner:
        network = fresh_network(self._task.store, config, derive(self._task.seed, name))
        return Learner(network, config, self._task.learner.history, name)

    def _number_on(self, learner: Learner, records: Iterator[Record]) -> Iterator[Record]:
        """Number the updates of another learner on from those of the policy's."""
        learner.updates = self._task.learner.updates
        for record in records:
            self._task.learner.updates = learner.updates
            yield record

    def _fold_rows(self, behaviour: PolicyNetwork, fold: int) -> NDArray[np.int64]:
        """Return the decisions of other folds at which the behaviour is not certain to wait, or all if none is."""
        rows: NDArray[np.int64] = self._rows.decisions[self._rows.folds != fold]
        is_open = q_functions.supported_ops(behaviour, self._task.store, rows)[:, 1:].any(1)
        return rows[is_open] if is_open.any() else rows

    def _distil(self, networks: list[PolicyNetwork], behaviour: PolicyNetwork) -> Iterator[Record]:
        task, seed = self._task, derive(self._task.seed, "distil")
        chosen = np.sort(generator(seed, "decisions").permutation(self._rows.decisions)[:MOST_DECISIONS])
        valued = _estimated_decisions(task.store, chosen, networks, behaviour)
        passes, exploration, records = self._distil_passes, task.config.network.exploration, []
        for record in distillation(task.learner, task.store, valued, passes=passes, exploration=exploration, seed=seed):
            metrics = {_NAMES.get(name, name): value for name, value in record.metrics.items()}
            records.append(metrics)
            yield record._replace(metrics=metrics)
        rates = logged_commit_rates(task.learner.network, task.store, task.config.batch_sequences)
        check_commit_rate([rates], task.config.min_commit_rate)
        self.metrics = {**means(records[-updates_of(valued, 1) :]), **rates}

    def _explained_share(self, networks: list[PolicyNetwork]) -> float:
        """Return the share of the variance of returns that each host's left-out Q-function explains."""
        predicted, returns = [], []
        for fold, network in enumerate(networks):
            rows = self._rows.decisions[self._rows.folds == fold]
            predicted.append(q_functions.predictions(network, self._task.store, rows))
            returns.append(self._task.store.steps.returns[torch.from_numpy(rows)])
        values, targets = torch.cat(predicted), torch.cat(returns)
        return float(explained_variance(values, targets))

    @property
    def planned_updates(self) -> int:
        """Return the number of updates of all phases."""
        config = self._task.config
        cloned = config.cloning_passes * -(-self.episodes // config.batch_sequences)
        return cloned + FOLDS * config.q_updates + self._distil_passes * self._distil_batches

    @property
    def episodes(self) -> int:
        """Return the number of ordinary episodes."""
        return len(self._task.store.ordinary)

    @property
    def passes(self) -> float:
        """Return the passes of cloning, regression and distillation, summed over the episodes."""
        config, decisions = self._task.config, max(1, len(self._rows.decisions))
        fitted = FOLDS * config.q_updates * q_functions.BATCH + self._distil_passes * min(decisions, MOST_DECISIONS)
        return self.episodes * (config.cloning_passes + fitted / decisions)

    @property
    def _distil_batches(self) -> int:
        """Return the updates of one pass of the distillation."""
        return -(-min(len(self._rows.decisions), MOST_DECISIONS) // DISTIL_BATCH)

    @property
    def _distil_passes(self) -> int:
        return -(-self._task.config.q_updates // max(1, self._distil_batches))


_NAMES = {"expected_regret": "fitted_regret", "greedy_regret": "fitted_greedy_regret"}
"""Regrets against estimates do not have the names of regrets against returns."""


def _rows_of(store: GraphDataset) -> _Rows:
    """Return the decisions of ordinary episodes whose return is known: those that were cut off have none."""
    ended = store.ordinary[store.has_end[store.ordinary]]
    starts, lengths = store.sequences.starts[ended], store.sequences.lengths[ended]
    rows = concatenated_ranges(starts, lengths)
    keys = np.repeat(store.sequences.host_keys[ended], lengths)
    chosen = torch.from_numpy(rows)
    is_open = store.masks.op[chosen, 1:].any(1).numpy() & have_trained(store, rows)
    folds = {key: derive(key, "fold") % FOLDS for key in np.unique(keys).tolist()}
    return _Rows(rows[is_open], np.array([folds[key] for key in keys[is_open].tolist()], dtype=np.int64))


def _estimated_decisions(
    store: GraphDataset, rows: NDArray[np.int64], networks: list[PolicyNetwork], behaviour: PolicyNetwork
) -> BranchedDecisions:
    """Return decisions at the states of ``rows`` with estimates in place of returns."""
    parts = [
        q_functions.candidates(networks, behaviour, *store.states(ids))
        for ids in np.array_split(rows, -(-len(rows) // q_functions.BATCH))
    ]
    most = max(part.actions.shape[1] for part in parts)
    actions = torch.cat([_padded(part.actions, most) for part in parts]).to(store.steps.actions.dtype)
    values = [
        torch.nn.functional.pad(part.advantages, (0, most - part.advantages.shape[1]), value=torch.nan)
        for part in parts
    ]
    return BranchedDecisions(rows, actions, torch.cat(values), EMPTY, EMPTY)


def _padded(actions: torch.Tensor, most: int) -> torch.Tensor:
    return torch.cat([actions, actions[:, :1].expand(-1, most - actions.shape[1], -1)], dim=1)


def begin(task: LearningTask) -> FittedQObjective:
    """Return the objective for a log.

    Raises:
        ConfigError: without cloning, from which follows which actions the behaviour takes.
    """
    if not task.config.cloning_passes:
        raise ConfigError(
            "train.objective fitted_q needs train.cloning_passes of 1 or more: the cloned policy tells which actions "
            "the log has, and all others would be valued by guessing"
        )
    return FittedQObjective(task)
