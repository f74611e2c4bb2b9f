"""The tree of ``symptom``: chooses one of the plans of a book from the observation after the first epoch.

Every plan is grown on every host, so a host is labelled with the returns of all plans and not with its family. A
regression tree predicts these returns, less that of never growing on the same host; a leaf takes the plan with the best
mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.tree import DecisionTreeRegressor  # type: ignore[import-untyped]

from simic.contracts.batches import Observations
from simic.contracts.controllers import ControllerSpec, FittedTree, Plan, PlanBook, PlanTree, TreeLeaf, TreeSplit
from simic.contracts.names import SYMPTOM
from simic.contracts.settings.run import WorldConfig
from simic.contracts.state import HostIdentity
from simic.controllers.plugins.symptom import READS_AT
from simic.controllers.plugins.wait import WaitController
from simic.controllers.symptoms import symptom_names, symptoms
from simic.hosts.mixed_ensemble import ensemble_of
from simic.hosts.rollout import rollout
from simic.runtime.progress import NoProgress, Progress
from simic.validation.baselines.halving import NO_GROWTH, EpisodeRunner, pairs_of
from simic.validation.baselines.plan_book import as_searched

__all__ = ["TreeSettings", "add_tree", "fit_nodes", "plans_to_choose"]

Nodes = list[TreeSplit | TreeLeaf]


@dataclass(frozen=True)
class TreeSettings:
    """Size of the tree, and effort of fitting it."""

    hosts: int = 40
    """Number of new hosts per family on which every plan is grown."""
    depth: int = 4
    """Largest number of splits between the root and a leaf."""
    leaf_hosts: int = 10
    """Least number of hosts in a leaf."""


def add_tree(
    world: WorldConfig, book: PlanBook, settings: TreeSettings | None = None, *, progress: Progress | None = None
) -> PlanBook:
    """Return the book with a newly fitted tree.

    The tree is fitted on training hosts that the book does not name, and its difference to never growing is measured on
    the ``confirm_keys`` of the book. Equal arguments give equal trees on one machine.
    """
    settings = settings or TreeSettings()
    world = as_searched(book, world)
    first_key = max([*book.host_keys, *book.heuristic.host_keys, *book.confirm_keys]) + 1
    runner = EpisodeRunner(world, book.reward, first_key, progress or NoProgress())
    everywhere = range(len(runner.families))
    plans = plans_to_choose(book)
    candidates = [NO_GROWTH, *runner.enter(ControllerSpec(name="schedule", plan=plan) for plan in plans[1:])]
    hosts = runner.draw(settings.hosts)
    scores = runner.run_on(hosts, "symptom 1/2", pairs_of([candidates], [everywhere]))
    gains = np.stack(
        [np.concatenate([scores.of(index, family) for family in everywhere]) for index in candidates], axis=1
    )
    seen = _after_first_epoch([host for family in hosts for host in family], world)
    names = symptom_names(seen)
    tree = PlanTree(nodes=fit_nodes(names, symptoms(seen, names), gains, settings), plans=plans)
    fitted_on = runner.reset()
    confirm = runner.by_family(book.confirm_keys)
    (candidate,) = runner.enter([ControllerSpec(name=SYMPTOM, tree=tree)])
    confirmed = runner.run_on(confirm, "symptom 2/2", pairs_of([[candidate]], [everywhere]))
    over_wait = confirmed.estimate(candidate, everywhere, book.seed)
    fitted = FittedTree(
        tree=tree, over_wait=over_wait, host_keys=fitted_on, depth=settings.depth, leaf_hosts=settings.leaf_hosts
    )
    return book.model_copy(update={"symptom": fitted})


def fit_nodes(
    names: Sequence[str], values: NDArray[np.float32], gains: NDArray[np.float64], settings: TreeSettings
) -> Nodes:
    """Return the nodes of a tree that chooses the plan of the best mean gain in each leaf.

    Args:
        names: columns [F].
        values: finite float32 [N, F].
        gains: float64 [N, plans]; of plans with equal means in a leaf, the first is chosen.
        settings: size of the tree.
    """
    model = DecisionTreeRegressor(max_depth=settings.depth, min_samples_leaf=settings.leaf_hosts, random_state=0)
    fitted = model.fit(values, gains).tree_
    best = fitted.value[:, :, 0].argmax(axis=1).tolist()
    nodes: Nodes = []

    def add(node: int) -> None:
        """Append a node and then its descendants, as a leaf if all of them choose the same plan."""
        plans = _plans_below(fitted, best, node)
        if len(plans) == 1:
            nodes.append(TreeLeaf(plan=plans.pop()))
            return
        place = len(nodes)
        nodes.append(TreeLeaf(plan=best[node]))
        add(fitted.children_left[node])
        right = len(nodes)
        add(fitted.children_right[node])
        feature, threshold = names[fitted.feature[node]], float(fitted.threshold[node])
        nodes[place] = TreeSplit(feature=feature, threshold=threshold, left=place + 1, right=right)

    add(0)
    return nodes


def plans_to_choose(book: PlanBook) -> list[Plan]:
    """Return the distinct plans of a book, the one without seeds first, begun at epoch 1 or later."""
    plans = [_delayed(plan) for plan in (Plan(), book.blind, *book.by_family.values())]
    return list({plan.model_dump_json(): plan for plan in plans}.values())


def _delayed(plan: Plan) -> Plan:
    """Return the plan with its germinations at epoch 1 or later, in the same order, at most one per epoch."""
    seeds, earliest = [], READS_AT
    for seed in sorted(plan.seeds, key=lambda seed: seed.epoch):
        epoch = max(seed.epoch, earliest)
        seeds.append(seed.model_copy(update={"epoch": epoch}))
        earliest = epoch + 1
    return Plan(seeds=seeds)


def _plans_below(fitted: Any, best: Sequence[int], node: int) -> set[int]:
    """Return the plans that the leaves at or below a node choose."""
    if fitted.children_left[node] == fitted.children_right[node]:
        return {best[node]}
    below = (fitted.children_left[node], fitted.children_right[node])
    return set().union(*(_plans_below(fitted, best, child) for child in below))


def _after_first_epoch(hosts: Sequence[HostIdentity], world: WorldConfig) -> Observations:
    """Return what is observed after one epoch without growth."""
    return next(rollout(ensemble_of(hosts, world), WaitController().decide, seed=0)).after
