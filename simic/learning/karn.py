"""Training of Karn: a contextual bandit over blueprints, from the germinations of a snapshot.

A context is a host graph with the slot that germinates, an action is a blueprint, and the reward is the return to go in
points. Two kinds of examples are learned from together.

*Comparisons* are branched decisions that germinate in one slot and differ in the blueprint: the returns of several
blueprints are known in the same state. The loss is the expected regret over the tried blueprints minus a temperature
times the entropy (``annealed_regret``).

*Germinations* of ordinary episodes have one blueprint, drawn with a logged probability, and one return. The loss is
minus the doubly robust value with a bounded weight (``contextual_bandit``; Dudik et al. 2014, "Doubly Robust Policy
Evaluation and Optimization"), in which the network's second encoder predicts the return of every blueprint, fitted to
all examples at the same time. A blueprint that was not drawn among several says nothing about the others, so such
germinations are left out.

Shapes: B examples of a batch, K blueprints.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from simic.contracts.errors import TrainingError
from simic.contracts.settings.karn import KarnConfig
from simic.contracts.settings.training import TrainConfig
from simic.controllers.graph import GraphBatch
from simic.controllers.heads import MaskTensors, mixture
from simic.controllers.karn import KarnNetwork
from simic.controllers.network import FeatureNoise, fit_normaliser
from simic.learning.annealed_regret import REGRET_CUT, UNIT, rates_of, regret_terms, temperature_at
from simic.learning.distillation import BATCH, FEATURE_NOISE
from simic.learning.karn_examples import Comparisons, Germinations, KarnExamples, examples_of
from simic.learning.learner import NetworkLearner
from simic.learning.losses import Loss
from simic.learning.phases import LEAST_VALUE_SCALE, Record, means
from simic.numerics.contextual_bandit import doubly_robust_value
from simic.numerics.regret import IMPOSSIBLE
from simic.replay.dataset import GraphDataset
from simic.runtime.seeds import derive, generator

__all__ = ["KarnTraining", "regrets"]


class KarnTraining:
    """A training of Karn: made once and run once; afterwards ``network`` is trained.

    It runs on the CPU in float32, whatever ``train.device`` and ``train.precision`` say. It has no checkpoints: a
    killed training begins again, with the same result.
    """

    def __init__(self, store: GraphDataset, config: KarnConfig, train: TrainConfig, seed: int) -> None:
        """Prepare the training.

        Raises:
            TrainingError: for fewer examples than ``config.min_examples``.
        """
        self._train = train.model_copy(update={"device": "cpu", "precision": "float32"})
        self._store, self._config, self._seed = store, config, seed
        self.examples = examples_of(store)
        if self.examples.size < config.min_examples:
            raise TrainingError(
                f"the snapshot compares {len(self.examples.compared.rows)} slots of branched decisions and has "
                f"{len(self.examples.germinated.rows)} germinations of ordinary episodes whose blueprint was drawn "
                f"({self.examples.undrawn} others had no choice), fewer than karn.min_examples {config.min_examples}: "
                "collect branches (`simic run`), or episodes of a controller that draws blueprints "
                "(`simic collect --controller explore`), then ingest and curate"
            )
        self.network = _fresh(store, self.examples, config, derive(seed, "karn"))
        self._learner = NetworkLearner(self.network, self._train, name="karn")
        self.metrics = dict[str, float]()
        """Means over the last pass, and regrets on held-out comparisons, after ``run``."""

    @property
    def updates(self) -> int:
        """Return the number of updates of ``run``."""
        return self._config.passes * self._batches

    def require_finite(self) -> None:
        """Raise DivergenceError if a weight or a moment is not finite."""
        self._learner.history.require_finite()

    @property
    def _batches(self) -> int:
        return -(-self.examples.size // BATCH)

    def run(self) -> Iterator[Record]:
        """Train the network, and yield one record per update.

        Raises:
            DivergenceError: if a loss or a gradient is not finite.
            OutOfMemoryError: if a single example needs more memory than there is.
            CircuitOpenError: if a batch cannot be read.
        """
        schedule = rates_of(self.updates)
        noise = FeatureNoise(FEATURE_NOISE, torch.Generator().manual_seed(derive(self._seed, "karn noise")))
        records = list[dict[str, float]]()
        for number in range(self._config.passes):
            draw = generator(self._seed, "karn", number)
            orders = [draw.permutation(len(part.rows)) for part in (self.examples.compared, self.examples.germinated)]
            for compared, germinated in zip(*(np.array_split(order, self._batches) for order in orders), strict=True):
                temperature = temperature_at(len(records), self.updates)
                loss_of = partial(self._loss, compared, germinated, temperature, noise)
                rows = len(compared) + len(germinated)
                records.append(self._learner.update(rows, loss_of, schedule, len(records)))
                yield Record(self._learner.updates, "karn", records[-1])
        self.metrics = means(records[-self._batches :])
        if len(self.examples.held_out.rows):
            self.metrics |= regrets(self.network, self._store, self.examples)

    def _loss(
        self,
        compared: NDArray[np.int64],
        germinated: NDArray[np.int64],
        temperature: float,
        noise: FeatureNoise | None,
        part: slice,
    ) -> Loss:
        """Return the mean loss of a ``part`` of a batch, whose comparisons come before its germinations."""
        of_all = len(compared)
        comparisons = self.examples.compared.take(compared[part])
        drawn = self.examples.germinated.take(germinated[max(0, part.start - of_all) : max(0, part.stop - of_all)])
        states, masks = self._store.states(np.concatenate([comparisons.rows, drawn.rows]))
        slots = torch.cat([comparisons.slots, drawn.slots])
        table = _table(self.network(states, noise), states, slots, masks, self._train.network.exploration)
        predicted = _at(self.network.returns(states), states, slots)
        count = len(comparisons.rows)
        policy = torch.cat(
            [
                _comparison_loss(table[:count], comparisons, temperature),
                _germination_loss(
                    table[count:], predicted[count:].detach(), drawn, self._config.max_weight, temperature
                ),
            ]
        ).mean()
        value = _value_loss(predicted, comparisons, drawn, float(self.network.value_scale)).mean()
        entropy = -(table.exp() * table).sum(1).mean()
        metrics = {"policy_loss": policy, "value_loss": value, "blueprint_entropy": entropy}
        return Loss(policy + value, {name: metric.detach() for name, metric in metrics.items()})


def _fresh(store: GraphDataset, examples: KarnExamples, config: KarnConfig, seed: int) -> KarnNetwork:
    """Return an untrained network with the data's feature statistics and the scale of the examples' returns."""
    network = KarnNetwork(config.network, store.blueprints, seed)
    network.set_normaliser(fit_normaliser(store.statistics_graphs(), store.blueprints))
    returns = examples.returns.double()
    network.set_value_scale(float(returns.mean()), max(LEAST_VALUE_SCALE, float(returns.std(correction=0))))
    return network


def _at(columns: Tensor, states: GraphBatch, slots: Tensor) -> Tensor:
    """Return [B, K]: the rows of slot columns [S, K] that belong to one slot of each graph."""
    return columns[states.slot_ptr[:-1] + slots]


def _table(logits: Tensor, states: GraphBatch, slots: Tensor, masks: MaskTensors, exploration: float) -> Tensor:
    """Return log-probabilities [B, K], by the formula with which a policy that consults Karn acts."""
    return mixture(_at(logits, states, slots), masks.blueprint, exploration)


def _comparison_loss(table: Tensor, comparisons: Comparisons, temperature: float) -> Tensor:
    """Return [B] for log-probabilities ``table`` [B, K] of the blueprints."""
    among = table.masked_fill(~comparisons.tried, IMPOSSIBLE)
    return regret_terms(among, comparisons.regret).loss(temperature)


def _germination_loss(
    table: Tensor, predicted: Tensor, drawn: Germinations, max_weight: float, temperature: float
) -> Tensor:
    """Return [B]: minus the doubly robust value, minus a temperature times the entropy.

    A return further than ``REGRET_CUT`` from its prediction counts as that far, so that single catastrophes do not
    dominate.
    """
    own = predicted.gather(1, drawn.blueprints.unsqueeze(1)).squeeze(1)
    returns = own + (drawn.returns - own).clamp(-REGRET_CUT, REGRET_CUT)
    value = doubly_robust_value(table, drawn.blueprints, drawn.log_probs, returns, predicted, max_weight)
    entropy = -(table.exp() * table).sum(1)
    return -(value + temperature * entropy) / UNIT


def _value_loss(predicted: Tensor, comparisons: Comparisons, drawn: Germinations, scale: float) -> Tensor:
    """Return [B]: the Huber distance of the predicted returns [B, K] to the known ones, a mean over blueprints."""
    own = torch.full((len(drawn.rows), predicted.shape[1]), torch.nan)
    own = own.scatter(1, drawn.blueprints.unsqueeze(1), drawn.returns.unsqueeze(1))
    returns = torch.cat([comparisons.returns, own])
    known = ~returns.isnan()
    distance = functional.smooth_l1_loss(predicted / scale, returns.nan_to_num() / scale, reduction="none")
    return torch.where(known, distance, 0.0).sum(1) / known.sum(1)


@torch.no_grad()
def regrets(network: KarnNetwork, store: GraphDataset, examples: KarnExamples) -> dict[str, float]:
    """Return regrets in points per held-out comparison, over the tried blueprints and without exploration.

    Of Karn's distribution, of its likeliest blueprint, of the likeliest in the one ranking that is best on the learned
    comparisons, and of a uniform choice.
    """
    held_out, learned = examples.held_out, examples.compared
    regret, tried = held_out.regret, held_out.tried
    tables = []
    for ids in np.array_split(np.arange(len(held_out.rows)), -(-len(held_out.rows) // BATCH)):
        part = held_out.take(ids)
        states, masks = store.states(part.rows)
        tables.append(_table(network(states), states, part.slots, masks, 0.0))
    among = torch.cat(tables).masked_fill(~tried, IMPOSSIBLE)
    mean_regret = learned.regret.sum(0) / learned.tried.sum(0).clamp(min=1)
    mean_regret = mean_regret.where(learned.tried.any(0), -IMPOSSIBLE)  # nothing known is not the best
    fixed = torch.where(tried, mean_regret, torch.inf).argmin(1, keepdim=True)
    metrics = {
        "held_out_regret": (among.softmax(1) * regret).sum(1),
        "held_out_greedy_regret": regret.gather(1, among.argmax(1, keepdim=True)).squeeze(1),
        "held_out_fixed_regret": regret.gather(1, fixed).squeeze(1),
        "held_out_uniform_regret": regret.sum(1) / tried.sum(1),
    }
    return {name: float(values.double().mean()) for name, values in metrics.items()}
