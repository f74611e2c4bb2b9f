"""The live buffer under a long stream: a million experiences in, and no more memory than when it was first full.

Usage: python benchmarks/live_buffer.py [--json] [--out FILE] [--check] [--experiences N]
Episodes of 20 steps of 8-node host graphs arrive 2,000 steps at a time into a buffer with the default limits; in
between, 32 sequences are drawn, assembled and given new priorities. ``--check`` exits 1 if the process has grown by
more than the allowance since two capacities had passed through, or if drawing and assembling takes longer than its
budget.
"""

from __future__ import annotations

import resource
import statistics
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from common.command_line import make_parser, show

from simic.contracts.actions import HEADS, OPS
from simic.contracts.settings.run import WorldConfig
from simic.contracts.settings.training import ReplayConfig
from simic.controllers.features import encode
from simic.controllers.heads import MaskTensors
from simic.hosts.ensemble import Ensemble
from simic.hosts.host_sets import identify
from simic.replay.batch import Steps
from simic.replay.dataset import GraphDataset
from simic.replay.live.buffer import LiveBuffer
from simic.replay.rows import Sequences

STEPS, EPISODES, BATCH = 20, 100, 32
ALLOWANCE_MB = 64.0
"""The process may grow by this between two capacities and the end: allocators keep a little, rows do not count."""
BUDGET_MS = 50.0
"""Of drawing and assembling a batch."""


def make_store() -> GraphDataset:
    """``EPISODES`` episodes whose states are those of 64 benchmark hosts."""
    observations = Ensemble(identify("benchmark", range(64)), WorldConfig()).observe()
    steps, names = STEPS * EPISODES, observations.blueprints
    table = encode(observations.take(np.arange(steps + EPISODES) % len(observations)))
    rng = np.random.default_rng(0)

    def numbers() -> torch.Tensor:
        return torch.from_numpy(rng.standard_normal(steps).astype(np.float32))

    columns = Steps(
        actions=torch.zeros(steps, len(HEADS), dtype=torch.int64),
        log_prob_heads=torch.zeros(steps, len(HEADS)),
        log_prob_behaviour=numbers(),
        rewards=numbers(),
        discounts=numbers(),
        returns=numbers(),
    )
    slots = int(table.slot_ptr[steps])
    shapes = ((steps, len(OPS)), (slots, len(OPS)), (steps, len(names)))
    masks = MaskTensors(*(torch.ones(rows, width, dtype=torch.bool) for rows, width in shapes))
    starts = np.arange(EPISODES) * STEPS
    sequences = Sequences(
        run_ids=tuple(f"{index:032x}" for index in range(EPISODES)),
        policy_versions=("ab" * 32,) * EPISODES,
        controllers=("learned",) * EPISODES,
        sets=("benchmark",) * EPISODES,
        families=("any",) * EPISODES,
        host_keys=np.arange(EPISODES),
        starts=starts,
        lengths=np.full(EPISODES, STEPS),
        branch_of=(None,) * EPISODES,
        branch_steps=np.full(EPISODES, -1),
    )
    return GraphDataset(sequences, columns, masks, table, names)


def resident_mb() -> float:
    """Return the resident memory of this process in MiB, from ``/proc/self/statm``."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * resource.getpagesize() / 2**20


def stream(live: LiveBuffer, store: GraphDataset, experiences: int, capacity: int) -> dict[str, float]:
    """Seconds of inserting, median milliseconds of a sample, and how much the process grew once it was full."""
    rng, inserting, sampling, settled = np.random.default_rng(1), 0.0, list[float](), None
    for at in range(0, experiences, store.step_count):
        if settled is None and at >= 2 * capacity:
            settled = resident_mb()
        start = time.perf_counter()
        live.extend(store)
        between = time.perf_counter()
        sample = live.sample(BATCH)
        sampling.append(1e3 * (time.perf_counter() - between))
        inserting += between - start
        live.update(sample.ids, rng.exponential(1.0, BATCH))
    grown = resident_mb() - (resident_mb() if settled is None else settled)
    return {
        "experiences_per_s": experiences / inserting,
        "sample_ms": statistics.median(sampling),
        "grown_mb": grown,
        "resident_mb": resident_mb(),
        "buffer_mb": live.size_bytes / 2**20,
    }


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--check", action="store_true", help=f"exit 1 above {ALLOWANCE_MB:g} MB or {BUDGET_MS:g} ms")
    parser.add_argument("--experiences", type=int, default=1_000_000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    config, store = ReplayConfig(), make_store()
    live = LiveBuffer(config, seed=0, clock=lambda: datetime(2026, 1, 1, tzinfo=UTC))
    result = stream(live, store, arguments.experiences, config.capacity)
    show(
        arguments,
        {
            "name": "live_buffer",
            "threads": 1,
            "experiences": arguments.experiences,
            "held": live.steps,
            "evicted": live.evicted,
            "allowance_mb": ALLOWANCE_MB,
            "budget_ms": BUDGET_MS,
            **result,
        },
        table_of(arguments.experiences, live, result),
    )
    return int(arguments.check and (result["grown_mb"] > ALLOWANCE_MB or result["sample_ms"] > BUDGET_MS))


def table_of(experiences: int, live: LiveBuffer, result: dict[str, float]) -> str:
    """For people."""
    return "\n".join(
        [
            f"{experiences:,} experiences through a live buffer that holds {live.steps:,}, 1 thread",
            f"inserted per second: {result['experiences_per_s']:,.0f}",
            f"drawing and assembling {BATCH} sequences: {result['sample_ms']:.1f} ms (budget {BUDGET_MS:g})",
            f"process {result['resident_mb']:.0f} MB, buffer {result['buffer_mb']:.0f} MB, grown since it was full: "
            f"{result['grown_mb']:.1f} MB (allowance {ALLOWANCE_MB:g})",
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main())
