"""Let a policy decide in graftnet, against never growing and random decisions, on networks that no report is of.

Usage: python try_policy.py POLICY [--home HOME] [--networks 60]
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from pathlib import Path
from statistics import mean

from graftnet import Network, choices, decide

import simic

EPOCHS, FIRST_KEY = 8, 1_000_000
RENT, RENT_PARAMETERS = 3.0, 4000
"""The prices of lab.toml: points for that many parameters over an episode."""

Choose = Callable[[dict, dict], dict]


def points(key: int, choose: Choose) -> float:
    """Return 100 x (final - initial validation accuracy) - rent of one network; only what is kept counts in the end."""
    network = Network(key)
    start, parameters = network.accuracy(), 0
    for _ in range(EPOCHS):
        network.act(choose(network.state(EPOCHS), choices(network)))
        parameters += sum(seed["parameters"] for seed in network.paying())
        network.train()
    for slot, seed in enumerate(network.slots):
        if seed["stage"] == "HOLDING":
            network.slots[slot] = network.empty()
    return 100.0 * (network.accuracy() - start) - RENT * parameters / RENT_PARAMETERS / EPOCHS


def compare(policy: simic.Policy, networks: int) -> dict[str, float]:
    """Return the mean points of each way to decide on the same networks."""
    draw = random.Random(0)  # noqa: S311 - a simulation
    ways: dict[str, Choose] = {
        "never growing": lambda _state, _legal: {"op": "WAIT"},
        "random": lambda _state, legal: decide(legal, draw)[0],
        "policy": lambda state, legal: policy.decide(state, legal).model_dump(mode="json"),
    }
    keys = range(FIRST_KEY, FIRST_KEY + networks)
    return {name: mean(points(key, choose) for key in keys) for name, choose in ways.items()}


def main() -> None:
    """Print the mean points of each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("policy", help="the first 8 or more characters of its digest, or its directory")
    parser.add_argument("--home", type=Path)
    parser.add_argument("--networks", type=int, default=60)
    options = parser.parse_args()
    policy = simic.load_policy(options.policy, home=None if options.home is None else simic.Home(options.home))
    for name, found in compare(policy, options.networks).items():
        print(f"{name:14} {found:5.1f} points")


if __name__ == "__main__":
    main()
