"""Prioritised replay: draw and re-prioritise sequences, against tianshou's segment tree (compiled by numba).

Usage: python benchmarks/per.py [--json] [--out FILE] [--check] [--repetitions N]
Both draw 256 of 1,000,000 sequences, compute importance weights and write 256 new priorities, in turns on one thread;
both draw the same distribution (chi-square). Also: how long 100,000 updates take. Exits 4 where tianshou or numba is
not installed; tianshou 2.0 wants an older pandas than this project, so install it elsewhere:

    pip install --no-deps --target PEERS tianshou==2.0.1 numba llvmlite && PYTHONPATH=PEERS python benchmarks/per.py

``--check`` exits 1 above the target ratio, for a distribution that differs, or above a second for 100,000 updates.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from common.command_line import make_parser, show
from numpy.typing import NDArray
from scipy import stats

from simic.replay.live.prioritised import Prioritisation, PrioritisedSampler

ROWS, BATCH = 1_000_000, 256
UPDATES = 100_000
TARGET_RATIO = 2.0
"""Our time over tianshou's may be this, at most."""
TARGET_UPDATES_S = 1.0
DRAWS, DRAWN_ROWS = 1_000_000, 10_000
"""Size of the comparison of the sampled distributions."""
LEAST_P = 1e-3
SETTINGS = Prioritisation()

Rows = NDArray[np.int64]
Floats = NDArray[np.float64]


class Tianshou:
    """The sampling of Tianshou's prioritised buffer on its own segment tree, without the storage of transitions."""

    def __init__(self, module: ModuleType, magnitudes: Floats, seed: int) -> None:
        self._tree, self._rng = module.SegmentTree(len(magnitudes)), np.random.default_rng(seed)
        self._least = 1.0
        self.update(np.arange(len(magnitudes)), magnitudes)

    def draw(self, count: int) -> tuple[Rows, Floats]:
        rows = self._tree.get_prefix_sum_idx(self._rng.random(count) * self._tree.reduce())
        weights = (self._tree[rows] / self._least) ** -SETTINGS.beta
        return rows, weights / weights.max()

    def update(self, rows: Rows, magnitudes: Floats) -> None:
        weights = np.abs(magnitudes) + SETTINGS.eps
        self._tree[rows] = weights**SETTINGS.alpha
        self._least = min(self._least, weights.min())


def tianshou_tree() -> ModuleType | None:
    """Its segment tree alone, without what the package around it imports; None where it is not installed."""
    package = importlib.util.find_spec("tianshou")
    if package is None or not package.submodule_search_locations or importlib.util.find_spec("numba") is None:
        return None
    path = Path(package.submodule_search_locations[0]) / "data" / "utils" / "segtree.py"
    spec = importlib.util.spec_from_file_location("tianshou_segtree", path)
    if spec is None or spec.loader is None or not path.is_file():
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def simic_sampler(magnitudes: Floats, seed: int) -> PrioritisedSampler:
    sampler = PrioritisedSampler(len(magnitudes), seed=seed, settings=SETTINGS)
    rows = np.arange(len(magnitudes))
    sampler.add(rows)
    sampler.update(rows, magnitudes)
    return sampler


def time_both(contenders: dict[str, Any], repetitions: int) -> dict[str, dict[str, float]]:
    """Median microseconds of a draw, an update and both; the contenders take turns and see the same magnitudes."""
    fresh = np.random.default_rng(2)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for _ in range(repetitions):
        magnitudes = fresh.exponential(1.0, BATCH)
        for name, contender in contenders.items():
            start = time.perf_counter()
            rows = contender.draw(BATCH)[0]
            drawn = time.perf_counter()
            contender.update(rows, magnitudes)
            times[name].append((drawn - start, time.perf_counter() - drawn))
    parts = {name: np.array(values) * 1e6 for name, values in times.items()}
    return {
        name: {
            "draw": float(np.median(values[:, 0])),
            "update": float(np.median(values[:, 1])),
            "both": statistics.median(values.sum(axis=1).tolist()),
        }
        for name, values in parts.items()
    }


def compare_distributions(module: ModuleType) -> dict[str, float]:
    """p-values: each against the exact probabilities, and one against the other."""
    magnitudes = np.random.default_rng(1).exponential(1.0, DRAWN_ROWS)
    ours, theirs = simic_sampler(magnitudes, 3), Tianshou(module, magnitudes, 4)
    exact = (magnitudes + SETTINGS.eps) ** SETTINGS.alpha
    expected = DRAWS * exact / exact.sum()
    assert expected.min() > 5.0
    counts = {
        name: sum(np.bincount(contender.draw(1000)[0], minlength=DRAWN_ROWS) for _ in range(DRAWS // 1000))
        for name, contender in (("simic", ours), ("tianshou", theirs))
    }
    each = {f"{name}_exact": float(stats.chisquare(found, expected).pvalue) for name, found in counts.items()}
    return {**each, "simic_tianshou": float(stats.chi2_contingency(np.stack(list(counts.values()))).pvalue)}


def updates_s(sampler: PrioritisedSampler) -> float:
    """Seconds for ``UPDATES`` priorities, in batches of ``BATCH``."""
    rng = np.random.default_rng(5)
    rows, magnitudes = rng.integers(0, ROWS, UPDATES), rng.exponential(1.0, UPDATES)
    start = time.perf_counter()
    for at in range(0, UPDATES, BATCH):
        sampler.update(rows[at : at + BATCH], magnitudes[at : at + BATCH])
    return time.perf_counter() - start


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--check", action="store_true", help=f"exit 1 above {TARGET_RATIO:g}x of tianshou's time")
    parser.add_argument("--repetitions", type=int, default=2000)
    arguments = parser.parse_args()
    module = tianshou_tree()
    if module is None:
        print("tianshou and numba are not installed: nothing to compare with; see --help of this file", file=sys.stderr)
        return 4
    magnitudes = np.random.default_rng(0).exponential(1.0, ROWS)
    ours = simic_sampler(magnitudes, 0)
    contenders = {"simic": ours, "tianshou": Tianshou(module, magnitudes, 0)}
    time_both(contenders, 50)
    medians_us = time_both(contenders, arguments.repetitions)
    result = {
        "name": "per",
        "threads": 1,
        "rows": ROWS,
        "batch": BATCH,
        "median_us": medians_us,
        "ratio": medians_us["simic"]["both"] / medians_us["tianshou"]["both"],
        "target_ratio": TARGET_RATIO,
        "p_values": compare_distributions(module),
        "updates": UPDATES,
        "updates_s": updates_s(ours),
        "target_updates_s": TARGET_UPDATES_S,
    }
    show(arguments, result, table_of(result))
    return int(arguments.check and not is_met(result))


def is_met(result: dict[str, Any]) -> bool:
    is_fast = result["ratio"] <= TARGET_RATIO and result["updates_s"] < TARGET_UPDATES_S
    return bool(is_fast and min(result["p_values"].values()) > LEAST_P)


def table_of(result: dict[str, Any]) -> str:
    """For people."""
    lines = [f"{BATCH} of {ROWS:,} sequences, 1 thread, median microseconds of interleaved calls"]
    lines.append(f"{'':10}{'draw':>8}{'update':>8}{'both':>8}")
    for name, parts in result["median_us"].items():
        lines.append(f"{name:10}{parts['draw']:8.0f}{parts['update']:8.0f}{parts['both']:8.0f}")
    lines.append(f"time over tianshou's: {result['ratio']:.2f} (target at most {TARGET_RATIO:g})")
    lines.append("same distribution, p-values: " + ", ".join(f"{k} {v:.2f}" for k, v in result["p_values"].items()))
    lines.append(f"{UPDATES:,} updates in batches of {BATCH}: {result['updates_s']:.3f} s")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
