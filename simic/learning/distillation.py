"""Distillation: a policy learns from branched decisions, of which the return of every tried action is known.

The loss is the expected regret of the policy over the tried actions minus a temperature times its entropy. It is linear
in the returns, so the noise of single episodes averages out over hosts instead of favouring the luckiest action, and
the falling temperature keeps rare actions alive until their returns are learned. Decisions come from the policy's own
episodes in later rounds (Ross et al. 2011, "A Reduction of Imitation Learning and Structured Prediction to No-Regret
Online Learning"; cost-sensitive form: Ross and Bagnell 2014, arXiv:1406.5979).

Shapes: D decisions, C tried actions of one decision, A heads, R steps of the data set, B decisions of a batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from simic.contracts.actions import Head, Op
from simic.contracts.batches import HEAD_INDEX, OP_INDEX
from simic.controllers.features import has_trained
from simic.controllers.heads import ActionDistribution
from simic.controllers.network import FeatureNoise, PolicyNetwork
from simic.learning.annealed_regret import rates_of, regret_terms, temperature_at
from simic.learning.diagnostics import entropy_by_head
from simic.learning.learner import Learner
from simic.learning.losses import Loss
from simic.learning.phases import Record
from simic.numerics.regret import IMPOSSIBLE, regret_of
from simic.replay.dataset import GraphDataset
from simic.runtime.seeds import derive, generator

__all__ = [
    "FEATURE_NOISE",
    "BranchedDecisions",
    "DecisionSplit",
    "branched_decisions",
    "distillation",
    "have_trained",
    "regrets",
    "updates_of",
    "without_held_out",
]

HELD_OUT_OF, LEAST_HELD_OUT = 8, 8
"""Share of hosts whose decisions are held out, as a divisor, and the least number of them that measure."""
MOST_TRIED = 256
"""Largest number of actions of one decision; those with the greatest run ids beyond it are left out."""
BATCH = 128
"""Decisions per update."""
FEATURE_NOISE = 0.3
"""Noise on the features of a policy that learns from the returns of single episodes, in standard deviations. Without it
the policy gives hosts that are alike different slots and blueprints, whichever the luck of their episodes favoured."""
FIRST_EPOCH_MARGIN = 1.0
"""Points that the loss takes off the return of a germination before the first epoch. Hosts look more alike then than an
epoch later, so the luck of single returns would give all of them a seed that suits some."""
FOLLOWING_WEIGHT = 0.3
"""Weight of cloning the decisions that follow in the best branches."""
_OP = HEAD_INDEX[Head.OP]
_GERMINATE = OP_INDEX[Op.GERMINATE]


class BranchedDecisions(NamedTuple):
    """Decisions of which several actions were tried on the same host."""

    rows: NDArray[np.int64]
    """[D]: the step of the decision, a row of the data set."""
    actions: Tensor
    """int64 [D, C, A]; the parent's action first, and again in entries without a return."""
    returns: Tensor
    """float32 [D, C]: return to go in points; NaN in the padding."""
    following: NDArray[np.int64]
    """[F]: steps after the decision, in its best episode, at which some operation besides WAIT was legal. Of episodes
    without a policy, those at which a seed might have begun are left out: ``complete`` never begins one, so its WAIT
    says nothing about waiting."""
    predecessor: NDArray[np.int64]
    """[F]: the decision that each of them follows, an index into ``rows``."""

    def take(self, chosen: NDArray[np.bool_]) -> BranchedDecisions:
        """Return the ``chosen`` decisions, bool [D], with the steps that follow them."""
        where, stays = torch.from_numpy(chosen), chosen[self.predecessor]
        place = np.cumsum(chosen) - 1
        return BranchedDecisions(
            self.rows[chosen],
            self.actions[where],
            self.returns[where],
            self.following[stays],
            place[self.predecessor[stays]],
        )

    def tried_at(self, ids: NDArray[np.int64], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Return actions [B, C, A] and returns [B, C] of decisions ``ids`` [B], and which entries have a return."""
        chosen = torch.from_numpy(ids)
        returns = self.returns[chosen].to(device)
        return self.actions[chosen].to(device), returns, ~returns.isnan()


class DecisionSplit(NamedTuple):
    """Decisions to learn from, and decisions of other hosts that never teach, whatever else a snapshot holds."""

    learned: BranchedDecisions
    held_out: BranchedDecisions
    """One host in ``HELD_OUT_OF``, by hash; none if no other host were left to learn from."""
    held_out_hosts: int
    episodes: int
    """Distinct episodes of the learned decisions."""

    @property
    def held_out_if_enough(self) -> BranchedDecisions | None:
        """Return the held-out decisions, or None if they are of fewer hosts than ``LEAST_HELD_OUT``."""
        return self.held_out if self.held_out_hosts >= LEAST_HELD_OUT else None


Member = tuple[int, int]
"""A sequence, and the row of the decision in it."""


def branched_decisions(store: GraphDataset) -> DecisionSplit | None:
    """Return all decisions with two or more different actions, or None if there is none."""
    decisions = [members for members in _groups(store) if len(members) > 1]
    if not decisions:
        return None
    everything = _tensors(store, decisions)
    keys = store.sequences.host_keys[[members[0][0] for members in decisions]].tolist()
    is_held_out = _are_held_out(keys)
    if is_held_out.all():
        is_held_out[:] = False
    held_out = everything.take(is_held_out)
    learned = (members for members, is_out in zip(decisions, is_held_out, strict=True) if not is_out)
    episodes = len({sequence for members in learned for sequence, _ in members})
    return DecisionSplit(everything.take(~is_held_out), held_out, len(_hosts(store, held_out.rows)), episodes)


def without_held_out(store: GraphDataset, split: DecisionSplit) -> NDArray[np.int64]:
    """Return the ordinary sequences of hosts that are not held out, or all if no other host were left to learn from.

    A host counts whether or not a decision of it is branched: in a later snapshot it may be, and then it measures.
    """
    if _are_held_out([key for _, key in _hosts(store, split.learned.rows)]).any():
        return store.ordinary
    keys, place = np.unique(store.sequences.host_keys[store.ordinary], return_inverse=True)
    return store.ordinary[~_are_held_out(keys.tolist())[place]]


def _are_held_out(keys: Sequence[int]) -> NDArray[np.bool_]:
    """Return bool [N]: whether hosts of these keys measure, and never teach."""
    return np.array([derive(key, "held out") % HELD_OUT_OF == 0 for key in keys], dtype=bool)


def _hosts(store: GraphDataset, rows: NDArray[np.int64]) -> set[tuple[str, int]]:
    """Return set and key of the hosts of some steps."""
    sequences = np.unique(np.searchsorted(store.sequences.starts, rows, side="right") - 1).tolist()
    return {(store.sequences.sets[sequence], int(store.sequences.host_keys[sequence])) for sequence in sequences}


def _tensors(store: GraphDataset, decisions: Sequence[Sequence[Member]]) -> BranchedDecisions:
    most = max(map(len, decisions))
    rows, returns = np.zeros((len(decisions), most), dtype=np.int64), torch.full((len(decisions), most), torch.nan)
    following, predecessors = [], []
    for decision, members in enumerate(decisions):
        own = np.array([row for _, row in members])
        rows[decision], rows[decision, : len(own)] = own[0], own
        returns[decision, : len(own)] = store.steps.returns[torch.from_numpy(own)]
        sequence, row = members[int(returns[decision, : len(own)].argmax())]
        later = np.arange(row + 1, store.sequences.starts[sequence] + store.sequences.lengths[sequence])
        legal = store.masks.op[torch.from_numpy(later)].numpy()
        is_choice = legal[:, 1:].any(1)
        if store.sequences.policy_versions[sequence] is None:
            is_choice &= ~legal[:, _GERMINATE]
        later = later[is_choice]
        following.append(later)
        predecessors.append(np.full(len(later), decision, dtype=np.int64))
    actions = store.steps.actions[torch.from_numpy(rows)]
    return BranchedDecisions(
        rows[:, 0].copy(), actions, returns, np.concatenate(following), np.concatenate(predecessors)
    )


def have_trained(store: GraphDataset, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return for steps ``rows`` [N] whether their hosts have trained an epoch, bool [N]."""
    return has_trained(store.table.context_x[torch.from_numpy(rows)]).cpu().numpy()


def _groups(store: GraphDataset) -> Iterator[list[Member]]:
    """Yield the finished episodes of each decision, one for each action, the parent first.

    Reports may come from anywhere, so a branch counts only if it repeats its parent: same host, same actions up to the
    decision, same state there. What does not is left out, and so is a branch without its parent.
    """
    sequences = store.sequences
    place = {run_id: index for index, run_id in enumerate(sequences.run_ids)}
    branches: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, parent in enumerate(sequences.branch_of):
        if parent is not None and parent in place:
            branches[place[parent], int(sequences.branch_steps[index])].append(index)
    for (parent_index, step), members in branches.items():
        own = _member(store, parent_index, step)
        if own is None:
            continue
        distinct = {tuple(store.steps.actions[own[1]].tolist()): own}
        for index in members:
            branch = _member(store, index, step)
            if branch is not None and len(distinct) < MOST_TRIED and _repeats(store, own, branch, step):
                distinct.setdefault(tuple(store.steps.actions[branch[1]].tolist()), branch)
        yield list(distinct.values())


def _member(store: GraphDataset, sequence: int, step: int) -> Member | None:
    """Return the decision of a sequence, or None if it ended before the decision or was cut off."""
    start, length = int(store.sequences.starts[sequence]), int(store.sequences.lengths[sequence])
    is_finished = store.steps.discounts[start + length - 1] == 0
    return (sequence, start + step) if step < length and is_finished else None


def _repeats(store: GraphDataset, parent: Member, branch: Member, step: int) -> bool:
    """Return whether two sequences are of one host and reach the decision by the same actions in the same state."""
    sequences = store.sequences
    identities = {(sequences.sets[index], int(sequences.host_keys[index])) for index, _ in (parent, branch)}
    here, there = (slice(row - step, row) for _, row in (parent, branch))
    return (
        len(identities) == 1
        and torch.equal(store.steps.actions[here], store.steps.actions[there])
        and _is_same_state(store, parent[1], branch[1])
    )


def _is_same_state(store: GraphDataset, one: int, other: int) -> bool:
    """Return whether two steps have equal features, edges and masks."""
    table, masks = store.table, store.masks
    if not all(torch.equal(column[one], column[other]) for column in (table.context_x, masks.op, masks.blueprint)):
        return False
    ragged = (
        (table.slot_ptr, table.slot_x), (table.slot_ptr, masks.slot), (table.layer_ptr, table.layer_x),
        (table.connects_ptr, table.connects), (table.monitors_ptr, table.monitors),
    )  # fmt: skip
    for ptr, column in ragged:
        here, there = (slice(int(ptr[row]), int(ptr[row + 1])) for row in (one, other))
        if not torch.equal(column[here], column[there]):
            return False
    return True


def updates_of(decisions: BranchedDecisions, passes: int) -> int:
    """Return the number of updates of ``passes`` passes."""
    return passes * -(-len(decisions.rows) // BATCH)


def distillation(
    learner: Learner,
    store: GraphDataset,
    decisions: BranchedDecisions,
    *,
    passes: int,
    exploration: float,
    seed: int,
    deviation: float = 0.0,
) -> Iterator[Record]:
    """Run ``passes`` over the decisions, with features under noise of ``deviation``; yield one record per update."""
    total, position = updates_of(decisions, passes), 0
    noise = FeatureNoise(deviation, learner.history.generator("feature noise", derive(seed, "feature noise")))
    losses, schedule = _Losses(learner.network, store, decisions, exploration, noise), rates_of(total)
    for number in range(passes):
        draw = generator(seed, "distillation", number)
        order = draw.permutation(len(decisions.rows))
        for ids in np.array_split(order, -(-len(order) // BATCH)):
            some = draw.choice(decisions.following, min(BATCH, len(decisions.following)), replace=False)
            chosen = _Chosen(ids, some, temperature_at(position, total))
            metrics = learner.update(len(ids), partial(losses.of, chosen), schedule, position)
            position += 1
            yield Record(learner.updates, "distillation", metrics, number)


class _Chosen(NamedTuple):
    """What an update learns from."""

    ids: NDArray[np.int64]
    """[B]: decisions."""
    following: NDArray[np.int64]
    """Steps after decisions, to clone; may be empty."""
    temperature: float

    def following_in(self, part: slice) -> NDArray[np.int64]:
        """Return the share of ``following`` that belongs to some of the decisions, at least one step."""
        first, last = (edge * len(self.following) // len(self.ids) for edge in (part.start, part.stop))
        return self.following[first : max(first + 1, last)]


class _Losses(NamedTuple):
    """The losses of one distillation."""

    network: PolicyNetwork
    store: GraphDataset
    decisions: BranchedDecisions
    exploration: float
    noise: FeatureNoise

    def of(self, chosen: _Chosen, part: slice) -> Loss:
        """Return the loss of some of the chosen decisions, with as large a share of the steps to clone."""
        loss = self.of_decisions(chosen.ids[part], chosen.temperature)
        if not len(chosen.following):
            return loss
        cloning = self.of_following(chosen.following_in(part))
        return Loss(loss.total + FOLLOWING_WEIGHT * cloning, {**loss.metrics, "following_loss": cloning.detach()})

    def of_decisions(self, ids: NDArray[np.int64], temperature: float) -> Loss:
        """Return the loss of decisions ``ids`` [B], with the Huber distance of the value to the parent's return."""
        store, network, rows = self.store, self.network, self.decisions.rows[ids]
        states, masks = store.states(rows)
        actions, returns, tried = self.decisions.tried_at(ids, states.context_x.device)
        is_early = ~has_trained(states.context_x).unsqueeze(1) & (actions[..., _OP] == _GERMINATE)
        regret = regret_of(returns - FIRST_EPOCH_MARGIN * is_early)
        distribution = ActionDistribution(network.act(states, self.noise), states.slot_ptr, masks, self.exploration)
        joint = distribution.log_probs(actions).masked_fill(~tried, IMPOSSIBLE)
        terms = regret_terms(joint, regret).mean()
        targets = store.steps_at(rows).returns
        value = functional.smooth_l1_loss(network.value(states) / network.value_scale, targets / network.value_scale)
        with torch.no_grad():
            entropies, true_regret = distribution.entropy(actions[:, 0]), regret_of(returns)
            greedy = true_regret.gather(1, joint.argmax(1, keepdim=True)).mean()
            expected = (joint.softmax(1) * true_regret).sum(1).mean()
        metrics = {
            **entropy_by_head(entropies, actions[:, 0]),
            "step_count": value.new_full((), len(ids)),
            "expected_regret": expected,
            "greedy_regret": greedy,
            "decision_entropy": terms.entropy,
            "log_tried": terms.log_tried,
            "value_loss": value,
        }
        total = terms.loss(temperature) + value
        return Loss(total, {name: metric.detach() for name, metric in metrics.items()})

    def of_following(self, rows: NDArray[np.int64]) -> Tensor:
        """Return the mean negative log-likelihood of the logged actions of steps ``rows``."""
        states, masks = self.store.states(rows)
        output = self.network.act(states, self.noise)
        distribution = ActionDistribution(output, states.slot_ptr, masks, self.exploration)
        return -distribution.log_prob(self.store.steps_at(rows).actions).joint.mean()


@torch.no_grad()
def regrets(network: PolicyNetwork, store: GraphDataset, decisions: BranchedDecisions) -> dict[str, float]:
    """Return expected and greedy regret in points per decision, without exploration, over the tried actions."""
    expected, greedy = [], []
    for ids in np.array_split(np.arange(len(decisions.rows)), -(-len(decisions.rows) // BATCH)):
        states, masks = store.states(decisions.rows[ids])
        actions, returns, tried = decisions.tried_at(ids, states.context_x.device)
        distribution = ActionDistribution(network.act(states), states.slot_ptr, masks, exploration=0.0)
        joint, regret = distribution.log_probs(actions).masked_fill(~tried, IMPOSSIBLE), regret_of(returns)
        expected.append((joint.softmax(1) * regret).sum(1))
        greedy.append(regret.gather(1, joint.argmax(1, keepdim=True)).squeeze(1))
    return {
        "held_out_regret": float(torch.cat(expected).double().mean()),
        "held_out_greedy_regret": float(torch.cat(greedy).double().mean()),
    }
