"""Curve of what a policy gains against the number of branches that it learned from.

Usage: python benchmarks/branch_budget.py SNAPSHOT [--shares S ...] [--seeds N] [--hosts N] [--sets NAME ...]
           [--workers N] [--json] [--out FILE] [--plot FILE]
SNAPSHOT is a training set with branches; `simic run` makes some in data/snapshots of its home, and
`simic run -o collect.rounds=3` one of twice the default size. For every seed its branched hosts are put in an order of
their own; a policy learns from the first share of them, smaller shares within larger ones, and from nothing else. All
grow the same validation hosts, ``--hosts`` of each family. ``gain`` is the return over never growing in points, with
the standard error over hosts; ``spread`` is the standard deviation over seeds.
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

from simic.contracts.controllers import ControllerSpec
from simic.contracts.names import WAIT
from simic.contracts.rewards import RewardConfig
from simic.contracts.settings.run import WorldConfig
from simic.contracts.settings.training import TrainConfig
from simic.contracts.splits import Split
from simic.contracts.state import HostIdentity
from simic.controllers.factory import make
from simic.controllers.learned_controller import LearnedController
from simic.controllers.network import PolicyNetwork
from simic.controllers.policy_files import LoadedPolicy, describe
from simic.controllers.protocol import Controller
from simic.hosts.host_sets import draw_keys, host_set, identify
from simic.learning.distillation import BranchedDecisions
from simic.learning.phases import fresh_network
from simic.replay.dataset import GraphDataset
from simic.runtime.seeds import derive
from simic.validation.episodes import TrialJob, chunked, run_with
from simic.validation.plots import new_figure, save, style_axes

SHARES = (0.125, 0.25, 0.5, 1.0)
SETS = ("benchmark", "varied")
Floats = NDArray[np.float64]


class Grown(NamedTuple):
    """Returns of validation hosts under one policy, or under never growing, which learned from 0 branches."""

    branches: int
    """Tried actions that it learned from."""
    hosts: int
    """Branched hosts that it learned from."""
    returns: dict[str, Floats]
    """Per set the returns of its hosts, [N]."""


def hosts_of(store: GraphDataset, decisions: BranchedDecisions) -> list[tuple[str, int]]:
    """Set and key of the host of each decision."""
    rows = sequences_of(store, decisions)
    return [(store.sequences.sets[row], int(store.sequences.host_keys[row])) for row in rows.tolist()]


def part(store: GraphDataset, decisions: BranchedDecisions, share: float, seed: int) -> tuple[BranchedDecisions, int]:
    """The decisions of the first share of the hosts in the order of a seed, and the number of these hosts."""
    own = hosts_of(store, decisions)
    order = sorted(set(own), key=lambda host: derive(seed, "branch budget", *host))
    kept = set(order[: max(1, round(share * len(order)))])
    return decisions.take(np.array([host in kept for host in own])), len(kept)


def trained(store: GraphDataset, decisions: BranchedDecisions, seed: int) -> PolicyNetwork:
    """A policy that learned from the decisions as a training run learns from all."""
    config = TrainConfig()
    return distilled(fresh_network(store, config, seed), store, decisions, passes=config.distil_passes, seed=seed)


def acting(network: PolicyNetwork) -> Controller:
    """The policy as it acts in trials."""
    card = describe(
        network,
        TrainConfig().network,
        set_name=SETS[0],
        snapshot_digest=None,
        code_version="benchmark",
        config_digest="0" * 64,
    )
    return LearnedController(LoadedPolicy(network, card), policy_version=None, is_decisive=True)


def tried(controller: Controller | None, sets: Sequence[str], count: int) -> dict[str, Floats]:
    """Returns of the validation hosts of each set under a policy, or under ``wait``."""
    found = {}
    for name in sets:
        world = WorldConfig(set=name)
        hosts = identify(name, draw_keys(name, Split.VALIDATION, count * len(host_set(name).families)))
        found[name] = np.full(len(hosts), np.nan)
        for rows in chunked(hosts, world.chunk):
            some: tuple[HostIdentity, ...] = tuple(hosts[row] for row in rows.tolist())
            spec = ControllerSpec(name=WAIT)
            job = TrialJob(WAIT, spec, some, world, RewardConfig(), 0)
            found[name][rows] = run_with(controller or make(spec, some), job).returns
    return found


def measured(snapshot: Path, sets: Sequence[str], count: int, point: tuple[float, int]) -> Grown:
    """Train a policy on a share of the branched hosts and try it; a share of 0 is never growing."""
    torch.set_num_threads(1)
    share, seed = point
    if not share:
        return Grown(0, 0, tried(None, sets, count))
    store, everything = load(snapshot)
    decisions, hosts = part(store, everything, share, seed)
    branches = int((~decisions.returns.isnan()).sum())
    return Grown(branches, hosts, tried(acting(trained(store, decisions, seed)), sets, count))


def line(share: float, policies: Sequence[Grown], wait: Grown) -> dict:
    """One point of the curve: policies that learned from the same share, one per seed."""
    gains = {name: np.stack([one.returns[name] - wait.returns[name] for one in policies]) for name in wait.returns}
    return {
        "share": share,
        "hosts": float(np.mean([one.hosts for one in policies])),
        "branches": float(np.mean([one.branches for one in policies])),
        "sets": {
            name: {
                "gain": float(np.nanmean(each)),
                "error": float(np.nanstd(np.nanmean(each, axis=0)) / each.shape[1] ** 0.5),
                "spread": float(np.nanmean(each, axis=1).std(ddof=1)) if len(each) > 1 else None,
            }
            for name, each in gains.items()
        },
    }


def measure(
    snapshot: Path, shares: Sequence[float], seeds: int, sets: Sequence[str], count: int, workers: int
) -> list[dict]:
    """The curve, from the smallest share on."""
    points = [(0.0, 0), *((share, seed) for share in sorted(shares) for seed in range(seeds))]
    lines, done = [], []
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for (share, seed), grown in zip(
            points, pool.map(partial(measured, snapshot, sets, count), points), strict=True
        ):
            done.append(grown)
            if share and seed == seeds - 1:
                lines.append(line(share, done[-seeds:], done[0]))
                print(json.dumps(lines[-1]), flush=True)
    return lines


def draw(lines: Sequence[dict], path: Path) -> None:
    """Draw the curve as a PNG; bars are the spread over seeds, because all budgets share their hosts."""
    figure = new_figure(6.4, 3.6)
    axes = figure.subplots()
    budgets = [one["branches"] for one in lines]
    for name in lines[0]["sets"]:
        points = [one["sets"][name] for one in lines]
        spreads = [point["spread"] or 0.0 for point in points]
        axes.errorbar(budgets, [point["gain"] for point in points], spreads, marker="o", capsize=3, label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(budgets, [f"{budget:,.0f}" for budget in budgets])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("branches learned from")
    axes.set_ylabel("points over never growing")
    axes.legend(frameon=False)
    style_axes(axes)
    save(figure, path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "snapshot", type=Path, nargs="?", help="a training set with branches; without one, nothing runs"
    )
    parser.add_argument("--shares", type=float, nargs="+", default=list(SHARES), help="shares of the branched hosts")
    parser.add_argument("--seeds", type=int, default=3, help="policies per share")
    parser.add_argument("--hosts", type=int, default=32, help="validation hosts of each family")
    parser.add_argument("--sets", nargs="+", default=list(SETS), help="sets of these hosts")
    parser.add_argument("--workers", type=int, default=1, help="policies that are trained and tried at a time")
    parser.add_argument("--json", action="store_true", help="also print one JSON object")
    parser.add_argument("--out", type=Path, help="also write the results here, as JSON")
    parser.add_argument("--plot", type=Path, help="also draw the curve here, as PNG")
    arguments = parser.parse_args()
    if arguments.snapshot is None:
        return 4
    lines = measure(
        arguments.snapshot, arguments.shares, arguments.seeds, arguments.sets, arguments.hosts, arguments.workers
    )
    text = json.dumps({"name": "branch_budget", "seeds": arguments.seeds, "hosts": arguments.hosts, "curve": lines})
    if arguments.out is not None:
        arguments.out.write_text(text + "\n", "utf-8")
    if arguments.plot is not None:
        draw(lines, arguments.plot)
    if arguments.json:
        print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
