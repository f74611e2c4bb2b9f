"""Collecting episodes: CPU seconds of one core for 1,200 episodes of the benchmark set, and the memory of N = 1,024.

Usage: python benchmarks/collect.py [--json] [--out FILE] [--check] [--controllers NAME ...] [--episodes N] [--hosts N]
The whole way from host keys to field reports on the bus, in one process and on one thread, as ``simic collect`` goes it
with one worker. Memory is the peak resident size of a process of its own that steps one ensemble of N hosts, every
slot of every host holding a live seed, through an episode up to the test at its end; Python and its libraries, which
take their share before the first host, are counted. ``--check`` exits 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from common.command_line import make_parser, show
from peers.scene import STEERED_EPOCHS, EnsembleContender

from simic.bus.factory import BusSpec
from simic.collection.collect import collect
from simic.contracts.controllers import ControllerSpec
from simic.contracts.results.receipts import Provenance
from simic.contracts.settings.run import WorldConfig
from simic.contracts.splits import Split
from simic.hosts.host_sets import draw_keys, identify
from simic.runtime.clock import utc_now

TARGET_S = 90.0
"""CPU seconds for the episodes below, whoever steers."""
EPISODES = 1200
TARGET_BYTES = 2_500_000_000
HOSTS = 1024
HORIZON = 10
"""Epochs of the episode whose memory is measured: all seeds are felt by then."""
SEED = 0


def cpu_seconds(controller: str, episodes: int) -> dict[str, float]:
    """Collect once into a bus that is thrown away."""
    world = WorldConfig(workers=1, threads=1)
    hosts = identify(world.set, draw_keys(world.set, Split.TRAIN, episodes))
    made = Provenance("benchmark", "0" * 64, SEED)
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        receipt = collect(
            ControllerSpec(name=controller),
            hosts,
            world,
            BusSpec(Path(folder)),
            seed=SEED,
            provenance=made,
            clock=utc_now,
        )
        spent = time.process_time() - start
    assert receipt.episodes == episodes
    return {"cpu_s": spent, "reports": receipt.reports, "env_steps_per_s": receipt.reports / spent}


def peak_bytes() -> int:
    """Return the peak resident memory of this process in bytes; `getrusage` counts bytes on macOS and KiB elsewhere."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def grow(hosts: int) -> dict[str, int]:
    """Grow ``hosts`` hosts through one episode and return the peak memory before and after."""
    before = peak_bytes()
    contender = EnsembleContender(range(hosts), STEERED_EPOCHS, HORIZON)
    for number in range(HORIZON):
        contender.step(contender.actions(number))
    assert contender.ensemble.is_finished.all()
    kept = contender.ensemble.memory()._asdict()
    return {"hosts": hosts, "before_hosts_bytes": before, "peak_bytes": peak_bytes(), **kept}


def memory(hosts: int) -> dict[str, int]:
    """Return the figures of ``grow`` from a process of its own."""
    command = [sys.executable, __file__, "--hosts", str(hosts), "--grow"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    parser.add_argument("--controllers", nargs="+", default=["explore"], help="who steers, each on the same hosts")
    parser.add_argument("--episodes", type=int, default=EPISODES)
    parser.add_argument("--hosts", type=int, default=HOSTS, help="hosts of the ensemble whose memory is measured")
    parser.add_argument("--grow", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.grow:
        print(json.dumps(grow(options.hosts)))
        return 0
    collected = {name: cpu_seconds(name, options.episodes) for name in options.controllers}
    held = memory(options.hosts)
    targets = {"cpu_s": TARGET_S * options.episodes / EPISODES, "peak_bytes": TARGET_BYTES}
    result = {"episodes": options.episodes, "targets": targets, "collected": collected, "memory": held}
    show(options, {"name": "collect", **result}, table_of(result))
    slowest = max(row["cpu_s"] for row in collected.values())
    return int(options.check and (slowest > targets["cpu_s"] or held["peak_bytes"] > targets["peak_bytes"]))


def table_of(result: dict[str, Any]) -> str:
    """For people."""
    targets, held = result["targets"], result["memory"]
    lines = [f"{result['episodes']} episodes of the benchmark set, one core (target {targets['cpu_s']:g} CPU s)"]
    for name, row in result["collected"].items():
        lines.append(f"  {name:12s}{row['cpu_s']:8.1f} CPU s{row['env_steps_per_s']:8.0f} env-steps per CPU s")
    per_host = (held["peak_bytes"] - held["before_hosts_bytes"]) / held["hosts"] / 1e6
    lines.append(
        f"N = {held['hosts']}: peak {held['peak_bytes'] / 1e9:.2f} GB, {held['before_hosts_bytes'] / 1e9:.2f} GB of it "
        f"before the first host, {per_host:.2f} MB per host (target {targets['peak_bytes'] / 1e9:g} GB)"
    )
    kept = ", ".join(
        f"{name} {held[name] / held['hosts'] / 1e3:.0f} kB" for name in ("samples", "parameters", "snapshot")
    )
    lines.append(f"kept per host between steps: {kept}")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
