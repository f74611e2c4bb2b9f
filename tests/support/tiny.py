"""The smallest recipe with which every stage still has something to do; its policies are worth nothing."""

from __future__ import annotations

from pathlib import Path

__all__ = ["write_tiny_profile"]

TINY = """
[collect]
episodes = {episodes}
rounds = {rounds}
round_episodes = 10

[world]
workers = 1

[train]
batch_sequences = 8
cloning_passes = 1
value_passes = 1
vtrace_passes = 1
round_passes = 1
min_experiences = 100
min_commit_rate = 0.0

[train.network]
hidden = 8
layers = 1

[trial]
hosts_per_family = 2
bootstrap_samples = 200
"""


def write_tiny_profile(path: Path, rounds: int = 1, episodes: int = 20) -> Path:
    """A profile file for ``--profile``."""
    path.write_text(TINY.format(rounds=rounds, episodes=episodes))
    return path
