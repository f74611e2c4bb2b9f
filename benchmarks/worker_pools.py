"""Starting and ending a pool of two workers that can grow hosts, against workers that are new interpreters.

Usage: python benchmarks/worker_pools.py [--json] [--out FILE] [--repetitions N]
A run starts about twenty such pools. Both do the same two jobs, which take no time. Wall-clock seconds, medians of
pools that take turns; the first pool of ``simic.runtime.process_pool``, which loads the libraries for all, is a figure
of its own.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

from common.command_line import make_parser, show
from peers.spawned_pool import in_new_interpreters, work

from simic.runtime.process_pool import run_jobs

JOBS, WORKERS = range(2), 2


def seconds(pool: Callable[[], list[int]]) -> float:
    start = time.perf_counter()
    found = pool()
    spent = time.perf_counter() - start
    assert found == list(JOBS)
    return spent


def measure(repetitions: int) -> dict[str, float]:
    ours, theirs = partial(run_jobs, work, JOBS, WORKERS), partial(in_new_interpreters, JOBS, WORKERS)
    first = seconds(ours)
    pairs = [(seconds(ours), seconds(theirs)) for _ in range(repetitions)]
    forked, spawned = (statistics.median(column) for column in zip(*pairs, strict=True))
    return {"first_s": first, "forked_s": forked, "spawned_s": spawned, "ratio": spawned / forked}


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--repetitions", type=int, default=5, help="pools of each kind")
    arguments = parser.parse_args()
    found = measure(arguments.repetitions)
    result = {"name": "worker_pools", "workers": WORKERS, **found}
    table = "\n".join(f"{name:>10} {value:8.2f}" for name, value in found.items())
    show(arguments, result, table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
