"""Where two controllers act differently in the same states.

The distance of two distributions p and q over actions is their total variation, 1 - sum over actions of min(p, q): the
smallest probability of acting differently in any coupling of the two (Levin and Peres 2017, "Markov chains and mixing
times", proposition 4.7). Intervals resample hosts, because the states of a host are alike.

Shapes: N states, C candidate actions of a state, A heads, S slots of all states.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.contracts.actions import HEADS, Action, Head, Op
from simic.contracts.batches import HEAD_INDEX, STAGES, Observations, action_of
from simic.contracts.lifecycle import SeedStage
from simic.contracts.results.policy_difference import ActionChange, DifferenceGroup, DifferentState, Likeliest, Share
from simic.controllers.logged_states import TargetActions
from simic.numerics.ratio_sums import RatioSums, ratio_bootstrap
from simic.validation.palette import op_words, stage_word

__all__ = ["CONFIDENCE", "PLACE", "Places", "distance", "summarise"]

CONFIDENCE = 0.95
SAMPLES = 1000
"""Resamples of a bootstrap."""
PLACE: tuple[Head, ...] = (Head.OP, Head.SLOT, Head.BLUEPRINT)
"""What is done, where, and with which blueprint."""
MOST_CHANGES, MOST_EXAMPLES = 12, 12
EPOCHS = ((0, 0), (1, 1), (2, 3), (4, 7), (8, 15), (16, 10_000_000))
"""First and last epoch of each group."""
_NOTHING = "no seed"
_BLOCK = 4096


class Places(NamedTuple):
    """Where N states come from."""

    run_ids: Sequence[str]
    """[E] of the episodes, to which ``episode`` refers."""
    sets: Sequence[str]
    families: Sequence[str]
    host_keys: NDArray[np.int64]
    episode: NDArray[np.int64]
    """[N]"""
    step: NDArray[np.int64]
    """[N]"""

    def hosts(self) -> NDArray[np.int64]:
        """Return a number [N] that is the same for states of one host."""
        names = [f"{name}:{key}" for name, key in zip(self.sets, self.host_keys.tolist(), strict=True)]
        labels: NDArray[np.int64] = np.unique(names, return_inverse=True)[1].reshape(-1)
        return labels[self.episode]

    def take(self, rows: NDArray[np.int64]) -> Places:
        """Return the given states."""
        return self._replace(episode=self.episode[rows], step=self.step[rows])


class Summary(NamedTuple):
    """What differs between two controllers in N states."""

    disagreement: Share
    by_slot_and_blueprint: Share
    by_operation: Share
    other_choice: float
    groups: list[DifferenceGroup]
    changes: list[ActionChange]
    examples: list[DifferentState]


def distance(first: TargetActions, second: TargetActions, heads: Sequence[Head] = HEADS) -> NDArray[np.float64]:
    """Return the total variation distance [N] of two distributions over actions, told apart by ``heads`` only."""
    columns = [HEAD_INDEX[head] for head in heads]
    overlap = np.zeros(len(first.shares))
    for rows in np.array_split(np.arange(len(overlap)), max(1, -(-len(overlap) // _BLOCK))):
        ours, theirs = (target.candidates[rows][:, :, columns] for target in (first, second))
        p, q = (_merged(actions, target.shares[rows]) for actions, target in ((ours, first), (theirs, second)))
        is_same = (ours[:, :, None] == theirs[:, None]).all(axis=3)
        overlap[rows] = (is_same * np.minimum(p[:, :, None], q[:, None])).sum(axis=(1, 2))
    return np.clip(1.0 - overlap, 0.0, 1.0)


def _merged(actions: NDArray[np.int64], shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return shares [N, C] with those of equal actions added up in the first of them, and 0 in the others."""
    is_same = (actions[:, :, None] == actions[:, None]).all(axis=3)
    first = is_same.argmax(axis=1)
    total = (is_same * shares[:, None]).sum(axis=2)
    return np.where(first == np.arange(shares.shape[1]), total, 0.0)


def summarise(first: TargetActions, second: TargetActions, states: Observations, places: Places, seed: int) -> Summary:
    """Return where two controllers differ in N states, at least one."""
    hosts, apart = places.hosts(), distance(first, second)
    likeliest = [target.candidates[np.arange(len(apart)), target.shares.argmax(axis=1)] for target in (first, second)]
    is_other = (likeliest[0] != likeliest[1]).any(axis=1)
    words = [[_words(row, states.blueprints) for row in rows.astype(np.int16)] for rows in likeliest]
    return Summary(
        disagreement=_share(apart, hosts, seed),
        by_slot_and_blueprint=_share(distance(first, second, PLACE), hosts, seed),
        by_operation=_share(distance(first, second, (Head.OP,)), hosts, seed),
        other_choice=float(is_other.mean()),
        groups=list(_groups(apart, is_other, states, places, hosts, seed)),
        changes=_changes(words, is_other),
        examples=_examples(apart, hosts, places, words, [target.shares.max(axis=1) for target in (first, second)]),
    )


def _share(values: NDArray[np.float64], hosts: NDArray[np.int64], seed: int) -> Share:
    sums = RatioSums(values[:, None], np.ones((len(values), 1))).by_group(hosts)
    interval = ratio_bootstrap(sums, CONFIDENCE, SAMPLES, seed) if len(sums.numerators) > 1 else None
    if interval is None:
        return Share(value=float(values.mean()))
    return Share(value=min(1.0, interval.mean), lower=max(0.0, interval.lower), upper=min(1.0, interval.upper))


def _groups(
    apart: NDArray[np.float64],
    is_other: NDArray[np.bool_],
    states: Observations,
    places: Places,
    hosts: NDArray[np.int64],
    seed: int,
) -> Iterator[DifferenceGroup]:
    epochs = states.system["epoch"].astype(np.int64)
    labels = {
        "family": np.array(places.families)[places.episode],
        "epoch": np.array([_epoch_name(epoch) for epoch in epochs.tolist()]),
        "seeds": _seed_names(states),
    }
    for by, names in labels.items():
        order = dict.fromkeys(names[np.argsort(epochs, kind="stable")].tolist()) if by == "epoch" else set(names)
        for name in order if by == "epoch" else sorted(order):
            mine = np.flatnonzero(names == name)
            yield DifferenceGroup(
                by=by,
                name=str(name),
                states=len(mine),
                disagreement=_share(apart[mine], hosts[mine], seed),
                other_choice=float(is_other[mine].mean()),
            )


def _epoch_name(epoch: int) -> str:
    low, high = next(bounds for bounds in EPOCHS if epoch <= bounds[1])
    return f"{low}" if low == high else f"{low} to {high}" if high < EPOCHS[-1][1] else f"{low} and later"


def _seed_names(states: Observations) -> NDArray[np.str_]:
    """Return per state the most advanced stage of a seed that is not kept yet, or else whether one is kept."""
    stages = [_NOTHING] * len(states)
    order = {STAGES.index(stage): rank for rank, stage in enumerate(_RANKED)}
    for row, (start, end) in enumerate(zip(states.slot_ptr[:-1], states.slot_ptr[1:], strict=True)):
        ranks = [order[stage] for stage in states.slots["stage"][start:end].tolist() if stage in order]
        if ranks:
            stages[row] = stage_word(_RANKED[max(ranks)])
    return np.array(stages)


_RANKED = (
    SeedStage.RESETTING,
    SeedStage.EMBARGOED,
    SeedStage.PRUNED,
    SeedStage.FOSSILIZED,
    SeedStage.GERMINATED,
    SeedStage.TRAINING,
    SeedStage.BLENDING,
    SeedStage.HOLDING,
)
"""Stages by how much a decision about the slot matters, least first."""


def _words(row: NDArray[np.int16], blueprints: tuple[str, ...]) -> str:
    action: Action = action_of(row, blueprints)
    if action.op is Op.WAIT:
        return op_words(action.op)
    what = op_words(action.op) if action.blueprint is None else f"{op_words(action.op)} {action.blueprint}"
    details = [f"slot {action.slot}"]
    if action.op in (Op.ADVANCE, Op.SET_ALPHA_TARGET):
        details += [f"alpha {action.alpha_target:g}", f"over {action.alpha_speed} epochs"]
    return f"{what} ({', '.join(details)})"


def _changes(words: Sequence[Sequence[str]], is_other: NDArray[np.bool_]) -> list[ActionChange]:
    """Return the commonest pairs of likeliest actions that differ."""
    counts = Counter(pair for pair, differs in zip(zip(*words, strict=True), is_other, strict=True) if differs)
    return [
        ActionChange(first=ours, second=theirs, states=count, share=count / len(is_other))
        for (ours, theirs), count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MOST_CHANGES]
    ]


def _examples(
    apart: NDArray[np.float64],
    hosts: NDArray[np.int64],
    places: Places,
    words: Sequence[Sequence[str]],
    shares: Sequence[NDArray[np.float64]],
) -> list[DifferentState]:
    """Return the states of greatest disagreement, one of each host."""
    examples: list[DifferentState] = []
    seen = set[int]()
    for row in np.argsort(-apart, kind="stable").tolist():
        if len(examples) == MOST_EXAMPLES or apart[row] == 0.0:
            break
        if int(hosts[row]) in seen:
            continue
        seen.add(int(hosts[row]))
        episode = int(places.episode[row])
        pair = (Likeliest(action=words[i][row], probability=min(1.0, float(shares[i][row]))) for i in (0, 1))
        examples.append(
            DifferentState(
                run_id=places.run_ids[episode],
                set=places.sets[episode],
                family=places.families[episode],
                host_key=int(places.host_keys[episode]),
                step=int(places.step[row]),
                disagreement=float(apart[row]),
                first=next(pair),
                second=next(pair),
            )
        )
    return examples
