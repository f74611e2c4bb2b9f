"""Families of the set ``trunks``: cost of an epoch of one host, and what single seeds gain.

Usage: python benchmarks/trunk_hosts.py [--json] [--hosts N] [--gains]
One thread; CPU time of the process over an episode of 20 epochs, with nothing grown and with a seed of ``dense`` in the
first slot from epoch 1 on: training, validation, snapshot, gates and bookkeeping. ``--gains`` instead grows one seed in
the middle slot from epoch 1 on, of some blueprints in turn, and prints the paired gains over never growing on the same
hosts with 95 % intervals. The best of several single runs is inflated by noise; ``simic plans headroom`` is not.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

from simic.contracts.controllers import ControllerSpec, Plan, PlannedSeed
from simic.contracts.rewards import RewardConfig
from simic.contracts.settings.run import TrialConfig, WorldConfig
from simic.controllers.schedule_controller import ScheduleController
from simic.hosts.host_sets import SETS, identify
from simic.hosts.mixed_ensemble import ensemble_of
from simic.hosts.rollout import rollout
from simic.validation.episodes import TrialJob, run_episodes
from simic.validation.trials import paired_estimate

SET = "trunks"
WORLD = WorldConfig(set=SET, threads=1)
HELPS = 2.0
"""Points from which a seed counts as a help."""
SEEDED = Plan(seeds=[PlannedSeed(epoch=1, slot=0, blueprint="dense")])


def epoch_ms(family: str, hosts: int, plan: Plan) -> float:
    """Return milliseconds per host and epoch over the first ``hosts`` hosts of a family."""
    grown = ensemble_of(identify(SET, keys_of(family, hosts)), WORLD)
    controller = ScheduleController("schedule", [plan] * hosts)
    began = time.process_time()
    epochs = sum(int(step.live.sum()) for step in rollout(grown, controller.decide, seed=0))
    return 1e3 * (time.process_time() - began) / epochs


def keys_of(family: str, hosts: int) -> list[int]:
    """Return the keys of the first hosts of a family."""
    families = SETS[SET].families
    return [families.index(family) + len(families) * number for number in range(hosts)]


def print_gains(family: str, hosts: int) -> None:
    """Print the gain of each blueprint, and on how many hosts the best of them helps."""
    special = "conv3x3" if family == "cnn_plain" else "attention"
    identities, returns = identify(SET, keys_of(family, hosts)), {}
    for name in (None, "norm", "gate", "dense", "dropout", special):
        plan = Plan(seeds=[] if name is None else [PlannedSeed(epoch=1, slot=1, blueprint=name)])
        spec = ControllerSpec(name="schedule", plan=plan)
        returns[name] = run_episodes(TrialJob("gain", spec, identities, WORLD, RewardConfig(), seed=0)).returns
    never = returns.pop(None)
    for name, own in returns.items():
        found = paired_estimate(own, never, TrialConfig(), seed=0)
        helped = int((own - never > HELPS).sum())
        print(
            f"{family:17} {name:9} {found.mean:+5.1f} [{found.lower:+.1f}, {found.upper:+.1f}], helps {helped} hosts",
            flush=True,
        )
    best = np.max([own - never for own in returns.values()], axis=0)
    print(f"{family:17} best      {best.mean():+5.1f}, helps {(best > HELPS).sum()} of {hosts}", flush=True)


def main() -> None:
    """Read the command line and print the table."""
    parser = argparse.ArgumentParser(description="Cost of an epoch of one host of each trunk.")
    parser.add_argument("--hosts", type=int, default=16, help="hosts of each family")
    parser.add_argument("--gains", action="store_true", help="what single seeds gain, instead of the cost")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    found = {}
    for family in SETS[SET].families:
        if chosen.gains:
            print_gains(family, chosen.hosts)
            continue
        epoch_ms(family, 1, Plan())
        alone, seeded = (epoch_ms(family, chosen.hosts, plan) for plan in (Plan(), SEEDED))
        found[family] = {"alone_ms": round(alone, 1), "seeded_ms": round(seeded, 1)}
        if not chosen.json:
            print(f"{family:18} {alone:6.1f} ms an epoch, {seeded:6.1f} ms with a seed")
    if chosen.json and not chosen.gains:
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
