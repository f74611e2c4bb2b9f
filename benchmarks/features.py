"""Ablation of the features: policies that are distilled from the same branches without some columns.

Usage: python benchmarks/features.py SNAPSHOT [--json] [--out FILE] [--passes N] [--parts N] [--by host|family]
           [--only NAME ...] [--workers N]
SNAPSHOT is a training set with branches; `simic run` makes some in data/snapshots of its home. A column that a policy
is not to read gets an enormous deviation in its normaliser, so that its normalised value is 0. Hosts, or whole
families, are dealt to ``--parts`` parts; a policy learns without one part and chooses for it, so each decision is
chosen by a policy that learned from none of its host, or of its family. ``gain`` is the mean return of the choice minus
that of the action that the parent of the branches took; ``difference`` is to all features, paired by decision, with its
standard error. All are points per decision.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from peers.branches import distilled, load, sequences_of
from peers.relative_features import ABSOLUTE, RELATIVE, install

from simic.contracts.settings.training import TrainConfig
from simic.controllers import features
from simic.controllers.heads import ActionDistribution
from simic.controllers.network import PolicyNetwork
from simic.learning.distillation import BranchedDecisions
from simic.learning.phases import fresh_network
from simic.replay.dataset import GraphDataset
from simic.runtime.seeds import derive

UNREAD = 1e30
OWN = {node: set(names) for node, names in features.FEATURES.items()}
Read = dict[str, set[str]]
Floats = NDArray[np.float64]


def without(*parts: str) -> Read:
    """All features but those whose name contains one of the parts."""
    return {node: {name for name in names if not any(part in name for part in parts)} for node, names in OWN.items()}


ALL = "all features"
VARIANTS: dict[str, Read] = {
    ALL: OWN,
    "relative ones as well": {node: OWN[node] | set(RELATIVE[node]) for node in OWN},
    "relative ones instead": {node: OWN[node] - set(ABSOLUTE[node]) | set(RELATIVE[node]) for node in OWN},
    "no changes of loss and accuracy": without("_delta_"),
    "no losses, no accuracies": without("_loss", "loss_", "accuracy"),
    "no contributions": without("contribution"),
    "no spreads": without("spread"),
    "no dimensions": without("dimension"),
    "no parameters per sample": without("per_sample"),
    "neither of these two": without("dimension", "per_sample"),
    "no weights, no gradients": without("weight_norm", "gradient_norm"),
    "no widths": without("width"),
    "no layers": without("layer_", "width", "spread", "dimension", "weight_norm", "gradient_norm", "linear"),
}


class Chosen(NamedTuple):
    """Choices for D decisions, each made by a policy that learned from none of the decision's host or family."""

    gains: Floats
    """[D]: return of the choice minus that of the parent's action."""
    sets: NDArray[np.str_]
    """[D]"""


def trained(store: GraphDataset, decisions: BranchedDecisions, read: Read, passes: int) -> PolicyNetwork:
    """A policy that learned from the decisions and reads only some columns."""
    network = fresh_network(store, TrainConfig(), 0)
    normaliser = network.normaliser()
    for node, names in features.feature_names(store.blueprints).items():
        unread = [name not in read[node] and not name.startswith("blueprint=") for name in names]
        normaliser.deviation[node][torch.tensor(unread)] = UNREAD
    network.set_normaliser(normaliser)
    return distilled(network, store, decisions, passes=passes, seed=0)


@torch.no_grad()
def gains(network: PolicyNetwork, store: GraphDataset, decisions: BranchedDecisions) -> Floats:
    """[D]: return of the likeliest tried action minus that of the parent's, which is the first."""
    found = []
    for ids in np.array_split(np.arange(len(decisions.rows)), -(-len(decisions.rows) // 128)):
        states, masks = store.states(decisions.rows[ids])
        actions, returns, tried = decisions.tried_at(ids, states.context_x.device)
        joint = ActionDistribution(network.act(states), states.slot_ptr, masks, exploration=0.0).log_probs(actions)
        best = joint.masked_fill(~tried, -torch.inf).argmax(1, keepdim=True)
        found.append(returns.gather(1, best).squeeze(1) - returns[:, 0])
    return torch.cat(found).double().numpy()


def parts_of(store: GraphDataset, decisions: BranchedDecisions, parts: int, by: str) -> NDArray[np.int64]:
    """[D]: the part that the host of each decision is in, or its family."""
    rows = sequences_of(store, decisions)
    if by == "host":
        return np.array([derive(int(store.sequences.host_keys[row]), "part") % parts for row in rows])
    names = [store.sequences.families[row] for row in rows]
    order = sorted(set(names))
    return np.array([order.index(name) % parts for name in names])


def measured(snapshot: Path, passes: int, parts: int, by: str, name: str) -> Chosen:
    """Train one policy per part without it, and let it choose for the part."""
    torch.set_num_threads(1)
    install()
    store, decisions = load(snapshot)
    part, found = parts_of(store, decisions, parts, by), np.zeros(len(decisions.rows))
    for own in sorted(set(part.tolist())):
        network = trained(store, decisions.take(part != own), VARIANTS[name], passes)
        found[part == own] = gains(network, store, decisions.take(part == own))
    rows = sequences_of(store, decisions)
    return Chosen(found, np.array([store.sequences.sets[row] for row in rows]))


def row(name: str, chosen: Chosen, everything: Chosen) -> dict[str, str | float | dict[str, float]]:
    """One line of the results."""
    apart = chosen.gains - everything.gains
    return {
        "features": name,
        "gain": float(chosen.gains.mean()),
        "difference": float(apart.mean()),
        "error": float(apart.std() / len(apart) ** 0.5),
        "by_set": {one: float(apart[chosen.sets == one].mean()) for one in sorted(set(chosen.sets.tolist()))},
    }


def measure(snapshot: Path, names: Sequence[str], passes: int, parts: int, by: str, workers: int) -> list[dict]:
    """One line for each variant; the first is that of all features."""
    job = partial(measured, snapshot, passes, parts, by)
    lines, everything = [], None
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for name, chosen in zip(names, pool.map(job, names), strict=True):
            everything = everything or chosen
            lines.append(row(name, chosen, everything))
            print("{features:34}{gain:7.3f}{difference:+8.3f} +- {error:.3f}  {by_set}".format(**lines[-1]), flush=True)
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "snapshot", type=Path, nargs="?", help="a training set with branches; without one, nothing runs"
    )
    parser.add_argument("--json", action="store_true", help="also print one JSON object")
    parser.add_argument("--out", type=Path, help="also write the results here, as JSON")
    parser.add_argument("--passes", type=int, default=TrainConfig().distil_passes, help="passes of each distillation")
    parser.add_argument("--parts", type=int, default=4, help="parts that are left out in turn")
    parser.add_argument("--by", choices=["host", "family"], default="host", help="what is dealt to the parts")
    parser.add_argument("--only", nargs="*", choices=list(VARIANTS), default=[], help="variants beside all features")
    parser.add_argument("--workers", type=int, default=1, help="variants that are trained at a time")
    arguments = parser.parse_args()
    if arguments.snapshot is None:
        return 4
    names = list(dict.fromkeys([ALL, *(arguments.only or VARIANTS)]))
    lines = measure(arguments.snapshot, names, arguments.passes, arguments.parts, arguments.by, arguments.workers)
    text = json.dumps({"name": "features", "passes": arguments.passes, "parts": arguments.parts, "by": arguments.by,
                       "variants": lines})  # fmt: skip
    if arguments.out is not None:
        arguments.out.write_text(text + "\n", "utf-8")
    if arguments.json:
        print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
