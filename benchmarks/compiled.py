"""The policy network of an update under ``torch.compile`` against the same one uncompiled, on one thread.

Usage: python benchmarks/compiled.py [--json] [--out FILE] [--check] [--repetitions N]
Each update has other episodes, so every batch has other numbers of nodes and edges: ``dynamic=True`` makes one graph
for all. Times are processor times of forward and backward of logits and values; compilations and graph breaks are
counted by Dynamo. The first call compiles, which takes minutes. ADR 48 has the figures.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from common.command_line import make_parser, show
from learner import SEQUENCES, make_store
from torch._dynamo.utils import counters

from simic.contracts.settings.training import TrainConfig
from simic.learning.phases import fresh_network
from simic.replay.batch import SequenceBatch

BATCHES, WARM = 14, 3


def main() -> None:
    """Measure on batches of the default size."""
    parser = make_parser(__doc__)
    parser.add_argument("--check", action="store_true", help="accepted and without effect: there is no target")
    parser.add_argument("--repetitions", type=int, default=4, help="passes over the batches per contender")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    config, store, draw = TrainConfig(), make_store(), np.random.default_rng(0)
    network = fresh_network(store, config, 0)
    batches = [store.batch(draw.permutation(SEQUENCES)[: config.batch_sequences]) for _ in range(BATCHES)]
    compiled = torch.compile(network.act_and_value, dynamic=True)
    start = time.perf_counter()
    step(network, compiled, batches[0])
    first_s = time.perf_counter() - start
    for batch in batches[1 : 1 + WARM]:
        step(network, compiled, batch)
    warm = counters["stats"]["unique_graphs"]
    found = {name: [] for name in ("eager", "compiled")}
    for _ in range(arguments.repetitions):
        for name, call in (("eager", network.act_and_value), ("compiled", compiled)):
            found[name] += [step(network, call, batch) for batch in batches]
    medians = {name: 1e3 * statistics.median(times) for name, times in found.items()}
    result: dict[str, Any] = {
        "name": "compiled",
        "median_ms": medians,
        "ratio": medians["eager"] / medians["compiled"],
        "first_call_s": first_s,
        "graphs": counters["stats"]["unique_graphs"],
        "graphs_after_warm_up": counters["stats"]["unique_graphs"] - warm,
        "graph_breaks": sum(counters["graph_break"].values()),
    }
    lines = [f"{name:<24}{value}" for name, value in result.items()]
    show(arguments, result, "\n".join(lines))


def step(network: torch.nn.Module, call: Callable[..., Any], batch: SequenceBatch) -> float:
    """Return the processor seconds of forward and backward."""
    start = time.process_time()
    output, values = call(batch.steps, batch.with_finals)
    sum((column.square().mean() for column in output), values.square().mean()).backward()
    network.zero_grad(set_to_none=True)
    return time.process_time() - start


if __name__ == "__main__":
    main()
