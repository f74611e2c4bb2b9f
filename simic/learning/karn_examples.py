"""What Karn learns from: comparisons of blueprints and drawn germinations, from the episodes of a data set.

Shapes: G germinations, D comparisons, K blueprints.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.contracts.actions import Head, Op
from simic.contracts.batches import HEAD_INDEX, OP_INDEX
from simic.learning.distillation import BranchedDecisions, branched_decisions, without_held_out
from simic.numerics.ragged import concatenated_ranges
from simic.numerics.regret import regret_of
from simic.replay.dataset import GraphDataset

__all__ = ["Comparisons", "Germinations", "KarnExamples", "examples_of"]

LEAST_DRAWN = -1e-6
"""Log-probability from which on a blueprint counts as not drawn; log-probabilities are stored in float32."""
_OP, _SLOT, _BLUEPRINT = (HEAD_INDEX[head] for head in (Head.OP, Head.SLOT, Head.BLUEPRINT))
_GERMINATE = OP_INDEX[Op.GERMINATE]


class Comparisons(NamedTuple):
    """Slots of branched decisions in which two or more blueprints were tried."""

    rows: NDArray[np.int64]
    """[D]: the step, a row of the data set."""
    slots: Tensor
    """int64 [D]"""
    returns: Tensor
    """float32 [D, K]: mean return to go in points per tried blueprint, NaN for the others."""

    @property
    def regret(self) -> Tensor:
        """Return [D, K]: points that each blueprint loses against the best tried one; 0 where it was not tried."""
        return regret_of(self.returns)

    @property
    def tried(self) -> Tensor:
        """Return bool [D, K]."""
        return ~self.returns.isnan()

    def take(self, ids: NDArray[np.int64]) -> Comparisons:
        """Return the comparisons ``ids``."""
        return Comparisons(self.rows[ids], self.slots[torch.from_numpy(ids)], self.returns[torch.from_numpy(ids)])


class Germinations(NamedTuple):
    """Germinations of ordinary episodes whose blueprint was drawn among several."""

    rows: NDArray[np.int64]
    """[G]: the step, a row of the data set."""
    slots: Tensor
    """int64 [G]"""
    blueprints: Tensor
    """int64 [G]"""
    log_probs: Tensor
    """float32 [G]: log-probability of the blueprint under the behaviour, given operation and slot; below 0."""
    returns: Tensor
    """float32 [G]: return to go in points."""

    def take(self, ids: NDArray[np.int64]) -> Germinations:
        """Return the germinations ``ids``."""
        chosen = torch.from_numpy(ids)
        return Germinations(
            self.rows[ids], self.slots[chosen], self.blueprints[chosen], self.log_probs[chosen], self.returns[chosen]
        )


class KarnExamples(NamedTuple):
    """Returns of blueprints in the states of a snapshot, from which Karn learns which one pays."""

    compared: Comparisons
    """Branched decisions: the returns of several blueprints in one state."""
    held_out: Comparisons
    """Comparisons on other hosts, which only measure; none if too few hosts are held out. Germinations on held-out
    hosts are not learned from either."""
    germinated: Germinations
    """Ordinary episodes: the return of the one blueprint that was germinated."""
    undrawn: int
    """Germinations of ordinary episodes that were left out, because their blueprint was not drawn among several."""

    @property
    def size(self) -> int:
        """Return the number of examples to learn from."""
        return len(self.compared.rows) + len(self.germinated.rows)

    @property
    def returns(self) -> Tensor:
        """Return float32 [examples]: all returns to go in points."""
        return torch.cat([self.compared.returns[self.compared.tried], self.germinated.returns])


def examples_of(store: GraphDataset) -> KarnExamples:
    """Return the examples of a data set."""
    split, blueprints = branched_decisions(store), len(store.blueprints)
    compared = _comparisons(None if split is None else split.learned, blueprints)
    held_out = _comparisons(None if split is None else split.held_out_if_enough, blueprints)
    ordinary = store.ordinary if split is None else without_held_out(store, split)
    ended = ordinary[store.has_end[ordinary]]  # the return of an episode that was cut off is unknown
    starts, lengths = store.sequences.starts[ended], store.sequences.lengths[ended]
    rows = torch.from_numpy(concatenated_ranges(starts, lengths))
    rows = rows[store.steps.actions[rows, _OP] == _GERMINATE]
    log_probs = store.steps.log_prob_heads[rows, _BLUEPRINT]
    is_drawn = (log_probs < LEAST_DRAWN) & (store.masks.blueprint[rows].sum(1) > 1)
    own = rows[is_drawn]
    actions = store.steps.actions[own].long()
    germinated = Germinations(
        own.numpy(), actions[:, _SLOT], actions[:, _BLUEPRINT], log_probs[is_drawn], store.steps.returns[own]
    )
    return KarnExamples(compared, held_out, germinated, int((~is_drawn).sum()))


def _comparisons(decisions: BranchedDecisions | None, blueprints: int) -> Comparisons:
    """Return the slots of the decisions in which several blueprints were tried."""
    rows, slots, returns = list[int](), list[int](), list[Tensor]()
    if decisions is not None:
        germinates = ~decisions.returns.isnan() & (decisions.actions[:, :, _OP] == _GERMINATE)
        for decision, tried in enumerate(germinates):
            own, points = decisions.actions[decision, tried].long(), decisions.returns[decision, tried]
            for slot in sorted(set(own[:, _SLOT].tolist())):
                here = own[:, _SLOT] == slot
                total = torch.zeros(blueprints).index_add_(0, own[here, _BLUEPRINT], points[here])
                mean = total / own[here, _BLUEPRINT].bincount(minlength=blueprints)  # 0 / 0 is NaN: not tried
                if int((~mean.isnan()).sum()) > 1:
                    rows.append(int(decisions.rows[decision]))
                    slots.append(slot)
                    returns.append(mean)
    return Comparisons(
        np.array(rows, dtype=np.int64),
        torch.tensor(slots, dtype=torch.int64),
        torch.stack(returns) if returns else torch.zeros(0, blueprints),
    )
