"""Growing hosts in a process that keeps freed memory, as workers do, against one with the defaults of the C library.

Usage: python benchmarks/freed_memory.py [--json] [--out FILE] [--sets NAME ...] [--hosts N] [--repetitions N]
A process grows N hosts of each set under the controller ``explore``, in chunks as a collection does, on one thread.
Processor seconds and page faults of the growing alone, medians of processes that take turns, and the largest peak of
resident memory, libraries included. Both kinds of process compute the same numbers.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

from common.command_line import make_parser, show

SETS = ("benchmark", "varied", "maps")
KINDS = ("kept", "given_back")


def grown(name: str, count: int) -> dict[str, Any]:
    """Grow hosts in this process."""
    import torch

    from simic.contracts.controllers import ControllerSpec
    from simic.contracts.settings.run import WorldConfig
    from simic.contracts.splits import Split
    from simic.controllers.factory import make
    from simic.hosts.host_sets import draw_keys, identify, layers_of
    from simic.hosts.mixed_ensemble import ensemble_of
    from simic.hosts.rollout import rollout

    torch.set_num_threads(1)
    world = WorldConfig(set=name)
    hosts = sorted(identify(name, draw_keys(name, Split.TRAIN, count)), key=layers_of)
    start, faults, total = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt, 0.0
    for first in range(0, count, world.chunk):
        chunk = hosts[first : first + world.chunk]
        for step in rollout(ensemble_of(chunk, world), make(ControllerSpec(name="explore"), chunk).decide, 0):
            total += float(step.outcome.validation_accuracy_after.sum())
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "cpu_s": time.process_time() - start,
        "faults": used.ru_minflt - faults,
        "peak_mb": used.ru_maxrss / 1024,
        "total": total,
    }


def measure(name: str, count: int, repetitions: int) -> dict[str, Any]:
    """Grow hosts in processes of both kinds in turn."""
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for _ in range(repetitions):
        for kind in KINDS:
            command = [sys.executable, __file__, "--worker", kind, "--sets", name, "--hosts", str(count)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found[kind].append(json.loads(done.stdout))
    assert len({one["total"] for each in found.values() for one in each}) == 1
    middle = {kind: statistics.median(one["cpu_s"] for one in each) for kind, each in found.items()}
    return {
        "set": name,
        "hosts": count,
        **{f"{kind}_cpu_s": seconds for kind, seconds in middle.items()},
        **{f"{kind}_faults": statistics.median(one["faults"] for one in found[kind]) for kind in KINDS},
        **{f"{kind}_peak_mb": max(one["peak_mb"] for one in found[kind]) for kind in KINDS},
        "ratio": middle["given_back"] / middle["kept"],
    }


def table(lines: list[dict[str, Any]]) -> str:
    head = f"{'set':>10} {'kept':>8} {'given back':>10} {'ratio':>6} {'faults':>18} {'peak MB':>12}"
    rows = [
        f"{line['set']:>10} {line['kept_cpu_s']:6.2f} s {line['given_back_cpu_s']:8.2f} s {line['ratio']:6.2f} "
        f"{line['kept_faults']:8,.0f} {line['given_back_faults']:9,.0f} "
        f"{line['kept_peak_mb']:6.0f} {line['given_back_peak_mb']:5.0f}"
        for line in lines
    ]
    return "\n".join([head, *rows])


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--sets", nargs="+", default=list(SETS), help="host sets")
    parser.add_argument("--hosts", type=int, default=128, help="hosts of each set")
    parser.add_argument("--repetitions", type=int, default=3, help="processes of each kind")
    parser.add_argument("--worker", choices=KINDS, help="grow the hosts of one set in this process, and print totals")
    arguments = parser.parse_args()
    if arguments.worker:
        if arguments.worker == "kept":
            from simic.runtime.freed_memory import keep_freed_memory

            assert keep_freed_memory()
        print(json.dumps(grown(arguments.sets[0], arguments.hosts)))
        return 0
    lines = [measure(name, arguments.hosts, arguments.repetitions) for name in arguments.sets]
    show(arguments, {"name": "freed_memory", "lines": lines}, table(lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
