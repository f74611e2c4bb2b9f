"""What a checkpoint of a training in progress costs, against the V-trace update before it.

Usage: python benchmarks/checkpoints.py SNAPSHOT [--out FILE] [--repeats N]
The network is the default one; an update learns from 32 episodes of the snapshot. Both are processor times of the same
process, in turn; the first of each is not counted. The disk's time comes on top of it and is given as wall time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from simic.contracts.settings.run import RunConfig
from simic.hosts.plugins import blueprint_names
from simic.learning.checkpoints import Checkpoints
from simic.learning.history import History
from simic.learning.learner import Learner
from simic.learning.losses import Loss
from simic.learning.objectives.vtrace import vtrace_loss
from simic.learning.phases import fresh_network
from simic.learning.rates import LrSchedule
from simic.replay.dataset import GraphDataset
from simic.trust.keys import load_signer


def times(function: Callable[[], object]) -> tuple[float, float]:
    """Processor and wall seconds of one call."""
    cpu, wall = time.process_time(), time.perf_counter()
    function()
    return time.process_time() - cpu, time.perf_counter() - wall


def measure(store: GraphDataset, root: Path, repeats: int) -> dict[str, float]:
    """Median milliseconds of an update and of a checkpoint."""
    config = RunConfig().train
    history = History()
    learner = Learner(fresh_network(store, config, 0), config, history)
    curves = root / "curves.jsonl"
    curves.touch()
    checkpoints = Checkpoints(root / "checkpoints", curves, "0" * 64, load_signer(root / "keys", {}), str)
    checkpoints.begin(None)
    schedule = LrSchedule.constant(0, 1.0)
    ids = store.ordinary[: config.batch_sequences]
    found: dict[str, list[tuple[float, float]]] = {"update": [], "checkpoint": []}

    def loss_of(part: slice) -> Loss:
        return vtrace_loss(learner.network, store.batch(ids[part]), config, 1.0)

    for _ in range(repeats + 1):
        found["update"].append(times(lambda: learner.update(len(ids), loss_of, schedule, 0)))
        found["checkpoint"].append(times(lambda: checkpoints.write(history, 0.0)))
    medians = {
        f"{name}_{kind}_ms": 1e3 * statistics.median(one[index] for one in values[1:])
        for name, values in found.items()
        for index, kind in enumerate(("cpu", "wall"))
    }
    (newest,) = sorted((root / "checkpoints").iterdir())[-1:]
    return {
        **medians,
        "ratio": medians["checkpoint_cpu_ms"] / medians["update_cpu_ms"],
        "share_of_updates": medians["checkpoint_cpu_ms"] / (config.checkpoint_updates * medians["update_cpu_ms"]),
        "size_kb": sum(file.stat().st_size for file in newest.iterdir()) / 1e3,
    }


def main() -> None:
    """Measure on the episodes of a snapshot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("snapshot", type=Path, nargs="?", help="episodes to learn from; without them, nothing runs")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.snapshot is None:
        raise SystemExit(4)
    torch.set_num_threads(1)
    store = GraphDataset.load(arguments.snapshot, blueprints=blueprint_names())
    with tempfile.TemporaryDirectory() as folder:
        result = {"name": "checkpoints", "threads": 1, **measure(store, Path(folder), arguments.repeats)}
    print(json.dumps(result))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
