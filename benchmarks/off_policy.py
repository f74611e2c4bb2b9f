"""Off-policy estimates and their bootstrap on one CPU thread: Simic against a plain Python loop, same numbers asserted.

Usage: python benchmarks/off_policy.py [--json] [--out FILE] [--check] [--repetitions N]
10,000 episodes of 20 steps; all estimators but MAGIC, then 1,000 resamples of whole episodes of PDWIS. The loop draws
the same episodes; it does 20 of the resamples, whose time is multiplied by 50, because all would take a minute.
``--check`` exits 1 below the target ratio.
"""

from __future__ import annotations

import math
import statistics
import time

import numpy as np
import torch
from common.command_line import make_parser, show

from simic.numerics.off_policy import ESTIMATORS, LoggedEpisodes
from simic.numerics.ratio_sums import ratio_bootstrap

STEPS, EPISODES, SAMPLES, LOOP_SAMPLES = 20, 10_000, 1_000, 20
NAMES = ("IS", "PDIS", "WIS", "PDWIS", "DR", "WDR")
TARGET = 10.0
"""The ratio to reach."""

Case = dict[str, np.ndarray]


def make_case() -> Case:
    """Episodes of 10 to 20 steps, near enough to the target that weights do not degenerate."""
    generator = np.random.default_rng(0)
    shape = (STEPS, EPISODES)
    behaviour = np.log(generator.uniform(0.2, 0.9, shape))
    return {
        "log_prob_target": np.minimum(behaviour + generator.normal(0.0, 0.1, shape), -1e-6),
        "log_prob_behaviour": behaviour,
        "rewards": generator.normal(size=shape),
        "valid": np.arange(STEPS)[:, None] < generator.integers(10, STEPS + 1, EPISODES),
        "q_values": generator.normal(size=shape),
        "state_values": generator.normal(size=shape),
    }


def simic(case: Case, samples: int) -> list[float]:
    """Return all estimates, and the ends of the interval of PDWIS."""
    episodes = LoggedEpisodes.of(**case)
    found = {name: ESTIMATORS[name](episodes) for name in NAMES}
    interval = ratio_bootstrap(found["PDWIS"].sums, 0.95, samples, 0)
    return [*(found[name].value for name in NAMES), interval.lower, interval.upper]


def loop(case: dict[str, list[list[float]]], drawn: list[list[int]]) -> tuple[list[float], float]:
    """Return the same by loops over resamples, episodes and steps, and the seconds that the resamples took."""
    lengths = [sum(row[i] for row in case["valid"]) for i in range(EPISODES)]
    weights = []
    for i in range(EPISODES):
        product, own = 1.0, [1.0]
        for t in range(STEPS):
            if t < lengths[i]:
                product *= math.exp(case["log_prob_target"][t][i] - case["log_prob_behaviour"][t][i])
            own.append(product)
        weights.append(own)
    below = [sum(own[t] for own in weights) for t in range(STEPS + 1)]
    total = dict.fromkeys(NAMES, 0.0)
    for i in range(EPISODES):
        own = sum(case["rewards"][t][i] for t in range(lengths[i]))
        total["IS"] += weights[i][STEPS] * own / EPISODES
        total["WIS"] += weights[i][STEPS] * own / below[STEPS]
        for t in range(lengths[i]):
            reward, q, v = (case[name][t][i] for name in ("rewards", "q_values", "state_values"))
            total["PDIS"] += weights[i][t + 1] * reward / EPISODES
            total["PDWIS"] += weights[i][t + 1] * reward / below[t + 1]
            total["DR"] += (weights[i][t + 1] * (reward - q) + weights[i][t] * v) / EPISODES
            total["WDR"] += weights[i][t + 1] * (reward - q) / below[t + 1] + weights[i][t] * v / below[t]
    start, resampled = time.perf_counter(), []
    columns = []
    for t in range(STEPS):
        weighted = [weights[i][t + 1] * case["rewards"][t][i] if t < lengths[i] else 0.0 for i in range(EPISODES)]
        columns.append((weighted, [own[t + 1] for own in weights]))
    for rows in drawn:
        value = 0.0
        for rewards, sizes in columns:
            above = weight = 0.0
            for i in rows:
                above += rewards[i]
                weight += sizes[i]
            value += above / weight
        resampled.append(value)
    taken = time.perf_counter() - start
    return [*(total[name] for name in NAMES), *np.quantile(resampled, (0.025, 0.975)).tolist()], taken


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--check", action="store_true", help=f"exit 1 below {TARGET:g}x")
    parser.add_argument("--repetitions", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    case = make_case()
    lists = {name: values.tolist() for name, values in case.items()}
    drawn = np.random.default_rng(0).integers(0, EPISODES, size=(LOOP_SAMPLES, EPISODES)).tolist()
    times: dict[str, list[float]] = {"simic": [], "loop": []}
    for _ in range(arguments.repetitions):
        start = time.perf_counter()
        simic(case, SAMPLES)
        times["simic"].append(time.perf_counter() - start)
        start = time.perf_counter()
        found, taken = loop(lists, drawn)
        elapsed = time.perf_counter() - start
        times["loop"].append(elapsed + taken * (SAMPLES / LOOP_SAMPLES - 1.0))
        np.testing.assert_allclose(simic(case, LOOP_SAMPLES), found, rtol=1e-9)
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratio = medians["loop"] / medians["simic"]
    sizes = {"episodes": EPISODES, "steps": STEPS, "resamples": SAMPLES, "loop_resamples": LOOP_SAMPLES, "threads": 1}
    result = {"name": "off_policy", **sizes, "target_ratio": TARGET, "median_s": medians, "ratio": ratio}
    show(arguments, result, table_of(medians, ratio))
    return int(arguments.check and ratio < TARGET)


def table_of(medians: dict[str, float], ratio: float) -> str:
    """For people."""
    head = f"{EPISODES:,} episodes x {STEPS} steps, {SAMPLES:,} resamples, 1 thread, same numbers"
    return "\n".join([head, *(f"{name:8}{value:10.2f} s" for name, value in medians.items()), f"ratio   {ratio:9.0f}x"])


if __name__ == "__main__":
    raise SystemExit(main())
