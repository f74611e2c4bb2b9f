"""The smallest recipe with which every stage still has something to do; its policies are worth nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

__all__ = ["write_tiny_profile"]

TINY = """
[collect]
episodes = {episodes}
rounds = {rounds}
round_episodes = 10
branch_hosts = 4
round_branch_hosts = 2
branch_decisions = 1
branch_actions = 3
further = {further}

[world]
set = "{world_set}"
workers = 1
horizon = {horizon}

[train]
start = "{start}"
distil_passes = 2
batch_sequences = 8
cloning_passes = 1
value_passes = 1
vtrace_passes = 1
round_passes = 1
min_experiences = {min_experiences}
min_commit_rate = 0.0

[train.network]
hidden = 8
layers = 1

[trial]
hosts_per_family = 2
also_sets = {also_sets}
also_hosts_per_family = 2
bootstrap_samples = 200

[gate]
min_episodes = {min_episodes}
margin_over_baselines = {margin}
"""


def write_tiny_profile(
    path: Path,
    rounds: int = 1,
    episodes: int = 20,
    *,
    start: str = "scratch",
    world_set: str = "benchmark",
    horizon: int = 20,
    min_experiences: int = 100,
    min_episodes: int = 10,
    also_sets: Sequence[str] = (),
    further_set: str | None = None,
    margin: float = 0.0,
) -> Path:
    """Write a profile file for ``--profile`` and return its path; by default its runs learn from a log.

    On few hosts a policy may win by luck, and any change of the code chooses others; with a large ``margin`` none wins.
    """
    values = {"start": start, "rounds": rounds, "episodes": episodes, "world_set": world_set, "horizon": horizon}
    values |= {"min_experiences": min_experiences, "min_episodes": min_episodes, "margin": margin}
    further = "" if further_set is None else f'{{set = "{further_set}", branch_hosts = 4, round_branch_hosts = 2}}'
    text = TINY.format(**values, also_sets=json.dumps(list(also_sets)), further=f"[{further}]")
    path.write_text(text, "utf-8")
    return path
