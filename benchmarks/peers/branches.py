"""Branched decisions of a snapshot, and policies that are distilled from some of them; D decisions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simic.contracts.settings.training import TrainConfig
from simic.controllers.network import PolicyNetwork
from simic.hosts.plugins import blueprint_names
from simic.learning.distillation import FEATURE_NOISE, BranchedDecisions, branched_decisions, distillation
from simic.learning.learner import Learner
from simic.replay.dataset import GraphDataset


def load(snapshot: Path) -> tuple[GraphDataset, BranchedDecisions]:
    """Return a training set and the decisions in it from which a training run learns."""
    store = GraphDataset.load(snapshot, blueprints=blueprint_names())
    split = branched_decisions(store)
    if split is None:
        raise SystemExit("the snapshot has no branches; `simic run` makes some")
    return store, split.learned


def sequences_of(store: GraphDataset, decisions: BranchedDecisions) -> NDArray[np.int64]:
    """Return the sequence that each decision is in, [D]."""
    return np.searchsorted(store.sequences.starts, decisions.rows, side="right") - 1


def distilled(
    network: PolicyNetwork, store: GraphDataset, decisions: BranchedDecisions, *, passes: int, seed: int
) -> PolicyNetwork:
    """Return the network after distillation as a training run does it."""
    config = TrainConfig()
    for _ in distillation(
        Learner(network, config),
        store,
        decisions,
        passes=passes,
        exploration=config.network.exploration,
        seed=seed,
        deviation=FEATURE_NOISE,
    ):
        pass
    return network.eval()
