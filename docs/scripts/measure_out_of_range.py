"""Measure on how many hosts of other sets a policy meets measurements outside its training.

Usage: python docs/scripts/measure_out_of_range.py POLICY [--set NAME]... [--hosts 20]
POLICY is a policy of the home, such as champion. It grows test hosts of each set; an episode counts for a feature if a
state of it lies outside. ADR 46 has what it printed.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

import numpy as np

import simic
from simic.api.policy import controller_of
from simic.contracts.settings.run import WorldConfig
from simic.contracts.splits import Split
from simic.controllers.learned_controller import LearnedController
from simic.hosts.host_sets import draw_keys, host_set, identify
from simic.hosts.mixed_ensemble import ensemble_of
from simic.hosts.rollout import rollout

SETS = ["benchmark", "varied", "shapes", "maps", "compound", "images", "trunks"]


def outside(controller: LearnedController, set_name: str, hosts: int) -> list[set[str]]:
    """Return for each host the features, with their node type, that lie outside in some state."""
    count = hosts * len(host_set(set_name).families)
    ensemble = ensemble_of(identify(set_name, draw_keys(set_name, Split.TEST, count)), WorldConfig(set=set_name))
    found: list[set[str]] = [set() for _ in range(count)]
    for step in rollout(ensemble, controller.decide, 0):
        for row in np.flatnonzero(step.live).tolist():
            outliers = controller.out_of_range(step.observations.take(np.array([row]))) or []
            found[row] |= {f"{one.node} {one.feature}" for one in outliers}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("policy")
    parser.add_argument("--set", action="append", help=f"default: {', '.join(SETS)}")
    parser.add_argument("--hosts", type=int, default=20, help="hosts of each family")
    arguments = parser.parse_args()
    controller = controller_of(simic.load_policy(arguments.policy))
    sys.stdout.write("| set | hosts | with anything outside | most often |\n| --- | --- | --- | --- |\n")
    for name in arguments.set or SETS:
        found = outside(controller, name, arguments.hosts)
        counted = Counter(feature for one in found for feature in one).most_common(3)
        often = ", ".join(f"{feature} ({count / len(found):.0%})" for feature, count in counted) or "-"
        sys.stdout.write(f"| `{name}` | {len(found)} | {sum(map(bool, found)) / len(found):.0%} | {often} |\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
