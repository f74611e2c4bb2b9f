"""Ablation of the features: the regret of policies that are distilled from the same branches without some columns.

Usage: python benchmarks/features.py SNAPSHOT [--json] [--out FILE] [--passes N] [--folds N] [--only NAME ...]
SNAPSHOT is a training set with branches; `simic run` makes some in data/snapshots of its home. A column that a policy
is not to read gets an enormous deviation in its normaliser, so that its normalised value is 0. ``held out`` is measured
on the branched hosts from which no policy learns. ``left out`` is transfer: the families are dealt to ``--folds``
parts; a policy learns without one part and is measured on its hosts, part by part. Regrets are points per decision;
less is better. ``parent`` is the regret of the actions that the parents of the branches took.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from peers.relative_features import ABSOLUTE, RELATIVE, install

from simic.contracts.config import TrainConfig
from simic.controllers import features
from simic.controllers.network import PolicyNetwork
from simic.hosts.plugins import blueprint_names
from simic.learning.distillation import FEATURE_NOISE, BranchedDecisions, branched_decisions, distillation, regrets
from simic.learning.learner import Learner
from simic.learning.phases import fresh_network
from simic.replay.dataset import GraphDataset

UNREAD = 1e30
OWN = {node: set(names) for node, names in features.FEATURES.items()}
Read = dict[str, set[str]]


def without(*parts: str) -> Read:
    """All features but those whose name contains one of the parts."""
    return {node: {name for name in names if not any(part in name for part in parts)} for node, names in OWN.items()}


VARIANTS: dict[str, Read] = {
    "all features": OWN,
    "relative ones as well": {node: OWN[node] | set(RELATIVE[node]) for node in OWN},
    "relative ones instead": {node: OWN[node] - set(ABSOLUTE[node]) | set(RELATIVE[node]) for node in OWN},
    "no changes of loss and accuracy": without("_delta_"),
    "no losses, no accuracies": without("_loss", "loss_", "accuracy"),
    "no spreads": without("spread"),
    "no weights, no gradients": without("weight_norm", "gradient_norm"),
    "no widths": without("width"),
    "no layers": without("layer_", "width", "spread", "weight_norm", "gradient_norm", "linear"),
}


def trained(store: GraphDataset, decisions: BranchedDecisions, read: Read, passes: int) -> PolicyNetwork:
    """A policy that learned from the decisions and reads only some columns."""
    config = TrainConfig()
    network = fresh_network(store, config, 0)
    normaliser = network.normaliser()
    for node, names in features.feature_names(store.blueprints).items():
        unread = [name not in read[node] and not name.startswith("blueprint=") for name in names]
        normaliser.deviation[node][torch.tensor(unread)] = UNREAD
    network.set_normaliser(normaliser)
    exploration = config.network.exploration
    for _ in distillation(
        Learner(network, config),
        store,
        decisions,
        passes=passes,
        exploration=exploration,
        seed=0,
        deviation=FEATURE_NOISE,
    ):
        pass
    return network.eval()


def families_of(store: GraphDataset, decisions: BranchedDecisions) -> NDArray[np.str_]:
    """The family of the host of each decision."""
    sequences = np.searchsorted(store.sequences.starts, decisions.rows, side="right") - 1
    return np.array([store.sequences.families[index] for index in sequences])


def left_out(store: GraphDataset, decisions: BranchedDecisions, read: Read, passes: int, folds: int) -> float:
    """Mean regret over decisions, each under a policy that learned nothing from the part that its family is in."""
    own = families_of(store, decisions)
    families, total = sorted(set(own)), 0.0
    for fold in range(folds):
        part = np.isin(own, families[fold::folds])
        network = trained(store, decisions.take(~part), read, passes)
        total += regrets(network, store, decisions.take(part))["held_out_regret"] * int(part.sum())
    return total / len(own)


def parent_regret(decisions: BranchedDecisions) -> float:
    """Mean regret of the first action of each decision."""
    returns = decisions.returns.nan_to_num(-torch.inf)
    return float((returns.amax(1) - returns[:, 0]).double().mean())


def measure(store: GraphDataset, names: Sequence[str], passes: int, folds: int) -> dict[str, dict[str, float]]:
    """Regrets per variant."""
    split = branched_decisions(store)
    if split is None:
        raise SystemExit("the snapshot has no branches; `simic run` makes some")
    results = {"parent": {"held_out": parent_regret(split.held_out), "left_out": parent_regret(split.learned)}}
    for name in names:
        network = trained(store, split.learned, VARIANTS[name], passes)
        results[name] = {"held_out": regrets(network, store, split.held_out)["held_out_regret"]}
        if folds:
            results[name]["left_out"] = left_out(store, split.learned, VARIANTS[name], passes, folds)
        print(name, results[name], flush=True)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "snapshot", type=Path, nargs="?", help="a training set with branches; without one, nothing runs"
    )
    parser.add_argument("--json", action="store_true", help="also print one JSON object")
    parser.add_argument("--out", type=Path, help="also write the results here, as JSON")
    parser.add_argument("--passes", type=int, default=TrainConfig().distil_passes, help="passes of each distillation")
    parser.add_argument("--folds", type=int, default=5, help="parts of the families that are left out in turn; 0: none")
    parser.add_argument("--only", nargs="*", choices=list(VARIANTS), help="variants to train")
    arguments = parser.parse_args()
    if arguments.snapshot is None:
        return 4
    torch.set_num_threads(1)
    install()
    store = GraphDataset.load(arguments.snapshot, blueprints=blueprint_names())
    results = measure(store, arguments.only or list(VARIANTS), arguments.passes, arguments.folds)
    text = json.dumps({"name": "features", "passes": arguments.passes, "folds": arguments.folds, "regret": results})
    if arguments.out is not None:
        arguments.out.write_text(text + "\n", "utf-8")
    if arguments.json:
        print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
