"""Assembling a batch of host graphs: gather from the data set's table against PyG's ``Batch.from_data_list``.

Usage: python benchmarks/graph_batch.py [--json] [--out FILE] [--check] [--repetitions N]
Both start from features that are already encoded; 8-node graphs of real hosts; the batches are asserted identical.
``--check`` exits 1 if any size stays below its target ratio.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from common.command_line import make_parser, show
from torch import Tensor
from torch_geometric.data import Batch, HeteroData

from simic.contracts.settings.run import WorldConfig
from simic.controllers.features import encode
from simic.controllers.graph import EDGE_TYPES, NODE_TYPES, GraphBatch
from simic.hosts.ensemble import Ensemble
from simic.hosts.host_sets import identify
from simic.replay.exports.pyg import hetero_data
from simic.replay.graph_table import GraphTable

SIZES = {32: 300, 256: 60, 1600: 12}
"""Graphs per batch and repetitions."""
TABLE_GRAPHS = 4096
TARGETS = {32: 15.0, 256: 40.0, 1600: 40.0}
"""The ratio to reach at each size."""


def make_table() -> GraphTable:
    """The states of 64 benchmark hosts, repeated: what a data set holds of a snapshot."""
    observations = Ensemble(identify("benchmark", range(64)), WorldConfig()).observe()
    table = GraphTable.of(encode(observations.take(np.arange(TABLE_GRAPHS) % len(observations))))
    # Real states differ from row to row; so do these, or a wrong gather would go unnoticed.
    generator = torch.Generator().manual_seed(0)
    noise = [torch.randn(x.shape, generator=generator) for x in (table.context_x, table.slot_x, table.layer_x)]
    return table._replace(context_x=noise[0], slot_x=noise[1], layer_x=noise[2])


def assert_identical(ours: GraphBatch, theirs: Batch) -> None:
    """Every feature, every edge and every offset."""
    features = {"context": ours.context_x, "slot": ours.slot_x, "layer": ours.layer_x}
    offsets = {"context": torch.arange(ours.graphs + 1), "slot": ours.slot_ptr, "layer": ours.layer_ptr}
    for node in NODE_TYPES:
        assert torch.equal(features[node], theirs[node].x), node
        assert torch.equal(offsets[node], theirs[node].ptr), node
    for edge in EDGE_TYPES:
        assert torch.equal(ours.edges[edge], theirs[edge].edge_index), edge


def measure(contenders: dict[str, Callable[[], object]], repetitions: int) -> dict[str, float]:
    """Median microseconds per call; the contenders take turns, so that a busy machine slows all alike."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repetitions):
        for name, call in contenders.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: 1e6 * statistics.median(values) for name, values in times.items()}


def compare(table: GraphTable, rows: Tensor, repetitions: int) -> dict[str, float]:
    """One batch both ways; the list of graphs is made outside the clock."""
    graphs: list[HeteroData] = [hetero_data(table.take(torch.tensor([row]))) for row in rows.tolist()]
    assert all(graph.num_nodes == 8 for graph in graphs)
    assert_identical(table.take(rows), Batch.from_data_list(graphs))
    contenders: dict[str, Callable[[], object]] = {
        "simic": lambda: table.take(rows),
        "pyg": lambda: Batch.from_data_list(graphs),
    }
    measure(contenders, max(2, repetitions // 20))
    return measure(contenders, repetitions)


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 below the target ratios")
    parser.add_argument("--repetitions", type=int, help="calls per contender and size")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table = make_table()
    generator = torch.Generator().manual_seed(1)
    results: list[dict[str, Any]] = []
    for size, repetitions in SIZES.items():
        rows = torch.randint(0, table.graphs, (size,), generator=generator)
        medians_us = compare(table, rows, arguments.repetitions or repetitions)
        results.append(
            {
                "graphs": size,
                "median_us": medians_us,
                "ratio": medians_us["pyg"] / medians_us["simic"],
                "target_ratio": TARGETS[size],
            }
        )
    show(arguments, {"name": "graph_batch", "threads": 1, "sizes": results}, table_of(results))
    is_met = all(result["ratio"] >= result["target_ratio"] for result in results)
    return int(arguments.check and not is_met)


def table_of(results: list[dict[str, Any]]) -> str:
    """Return the results as a text table: microseconds per batch and the ratio PyG / simic."""
    lines = ["Batches of 8-node host graphs, 1 thread, median of interleaved calls, identical batches"]
    lines.append(f"{'graphs':>8}{'simic us':>12}{'PyG us':>12}{'speed-up':>10}{'target':>8}")
    for result in results:
        medians = result["median_us"]
        ratios = f"{result['ratio']:9.0f}x{result['target_ratio']:7.0f}x"
        lines.append(f"{result['graphs']:8}{medians['simic']:12.0f}{medians['pyg']:12.0f}{ratios}")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
