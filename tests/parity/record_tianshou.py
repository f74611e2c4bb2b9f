"""Record what tianshou computes, for ``test_tianshou.py``: it needs an older pandas than this project installs.

In an environment of its own, from the project's root; the file is written again bit for bit:

    python3.11 -m venv PEER && PEER/bin/pip install tianshou==2.0.1
    PEER/bin/python tests/parity/record_tianshou.py
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from tianshou.algorithm.algorithm_base import Algorithm
from tianshou.data import Batch, PrioritizedReplayBuffer

RECORD = Path(__file__).with_name("tianshou.json")
GAMMA, LAMBDAS = 0.98, (0.0, 0.95, 1.0)
ALPHA, BETA = 0.6, 0.4
STEPS, EPISODES_END = 60, (11, 12, 30, 47, 59)
"""Last rows of the episodes; every second one is truncated, the others terminated."""
ROWS, DRAWN = 77, 64


def steps() -> PrioritizedReplayBuffer:
    """Return a buffer with the rows of several episodes, some of which were cut off."""
    draw = np.random.default_rng(0)
    buffer = PrioritizedReplayBuffer(STEPS, alpha=ALPHA, beta=BETA)
    for row in range(STEPS):
        end = EPISODES_END.index(row) if row in EPISODES_END else None
        buffer.add(
            Batch(
                obs=0,
                obs_next=0,
                act=0,
                rew=draw.normal(),
                info={},
                terminated=end is not None and end % 2 == 0,
                truncated=end is not None and end % 2 == 1,
            )
        )
    return buffer


def advantages() -> dict[str, Any]:
    """Return generalised advantages and lambda-returns [T] for each lambda, with what they are computed from."""
    buffer, draw = steps(), np.random.default_rng(1)
    rows = np.arange(STEPS)
    batch = buffer[rows]
    values, following = draw.normal(size=(2, STEPS))
    continues = ~(batch.terminated | batch.truncated)
    following[:-1] = np.where(continues[:-1], values[1:], following[:-1])
    found = {}
    for lambda_ in LAMBDAS:
        returns, estimates = Algorithm.compute_episodic_return(
            batch, buffer, rows, following.copy(), values.copy(), gamma=GAMMA, gae_lambda=lambda_
        )
        found[str(lambda_)] = {"advantages": estimates.tolist(), "returns": returns.tolist()}
    return {
        "gamma": GAMMA,
        "rewards": batch.rew.tolist(),
        "terminated": batch.terminated.tolist(),
        "truncated": batch.truncated.tolist(),
        "values": values.tolist(),
        "next_values": following.tolist(),
        "found": found,
    }


def priorities() -> dict[str, Any]:
    """Return which rows marks in [0, 1) of the total fall on, and the importance weights of these rows."""
    draw = np.random.default_rng(2)
    buffer = PrioritizedReplayBuffer(ROWS, alpha=ALPHA, beta=BETA)
    for _ in range(ROWS):
        buffer.add(Batch(obs=0, obs_next=0, act=0, rew=0.0, info={}, terminated=False, truncated=False))
    magnitudes = draw.exponential(size=ROWS)
    buffer.update_weight(np.arange(ROWS), magnitudes)
    shares = draw.random(DRAWN)
    rows = buffer.weight.get_prefix_sum_idx(shares * buffer.weight.reduce())
    return {
        "alpha": ALPHA,
        "beta": BETA,
        "eps": float(np.finfo(np.float32).eps),
        "magnitudes": magnitudes.tolist(),
        "shares": shares.tolist(),
        "rows": rows.tolist(),
        "weights": buffer[rows].weight.tolist(),
    }


def main() -> None:
    """Write the record."""
    record = {"tianshou": version("tianshou"), "gae": advantages(), "per": priorities()}
    RECORD.write_text(json.dumps(record, indent=None, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
