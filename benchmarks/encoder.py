"""The policy network against the same one by PyG's ``HeteroConv``: forward, with the backward pass, and its import.

Usage: python benchmarks/encoder.py [--json] [--out FILE] [--check] [--repetitions N]
Sizes are those of the profile ``nightly``: 672 graphs are a training batch of 32 sequences with final states, 64 graphs
are a chunk of hosts of one decision. Both forms have the same weights, and their outputs are asserted equal to 1e-6.
The ratio is HeteroConv / ours: above 1, ours is faster. ``--check`` exits 1 if forward and backward of the training
batch take longer than with HeteroConv. Imports are processor times of new processes: torch, then PyG's layers after it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from common.command_line import make_parser, show
from graph_batch import make_table
from peers.hetero_conv import HeteroConvNetwork

from simic.contracts.settings.network import NetworkConfig
from simic.controllers.graph import GraphBatch
from simic.controllers.network import NetworkShape, PolicyNetwork
from simic.hosts.plugins import blueprint_names

TRAINING_GRAPHS, ACTING_GRAPHS = 672, 64
LEAST_RATIO = 1.0


def forward(network: PolicyNetwork, batch: GraphBatch) -> None:
    """Logits alone, as a controller asks for them."""
    with torch.inference_mode():
        network.act(batch)


def forward_and_backward(network: PolicyNetwork, batch: GraphBatch) -> None:
    """Logits and values, and the gradient of all parameters."""
    network.zero_grad(set_to_none=True)
    sum((column.square().mean() for column in network(batch)), torch.zeros(())).backward()


def measure(contenders: dict[str, Callable[[], None]], repetitions: int) -> dict[str, float]:
    """Median milliseconds per call; the contenders take turns, so that a busy machine slows all alike."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repetitions):
        for name, call in contenders.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: 1e3 * statistics.median(values) for name, values in times.items()}


def compare(graphs: int, repetitions: int) -> list[dict[str, Any]]:
    """Both forms on one batch of real graphs with random features."""
    table = make_table()
    rows = torch.randint(0, table.graphs, (graphs,), generator=torch.Generator().manual_seed(1))
    batch = table.take(rows)
    network = PolicyNetwork(NetworkShape.of(NetworkConfig(), blueprint_names()))
    peer = HeteroConvNetwork(network)
    with torch.no_grad():
        for mine, other in zip(network(batch), peer(batch), strict=True):
            assert (mine - other).abs().max() <= 1e-6 * max(1.0, float(other.abs().max()))
    results = []
    for work in (forward, forward_and_backward):
        contenders = {"hetero_conv": lambda: work(peer, batch), "simic": lambda: work(network, batch)}  # noqa: B023
        measure(contenders, 3)
        medians = measure(contenders, repetitions)
        results.append(
            {
                "graphs": graphs,
                "work": work.__name__,
                "median_ms": medians,
                "ratio": medians["hetero_conv"] / medians["simic"],
            }
        )
    return results


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 if HeteroConv is faster")
    parser.add_argument("--repetitions", type=int, default=60, help="calls per contender")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = [row for graphs in (ACTING_GRAPHS, TRAINING_GRAPHS) for row in compare(graphs, arguments.repetitions)]
    show(arguments, {"name": "encoder", "threads": 1, "sizes": results}, table_of(results))
    return int(arguments.check and results[-1]["ratio"] < LEAST_RATIO)


def table_of(results: list[dict[str, Any]]) -> str:
    """Return the results as a text table: milliseconds per call and the ratio HeteroConv / ours."""
    lines = ["Policy network, 1 thread, median of interleaved calls, equal outputs"]
    lines.append(f"{'graphs':>8}  {'work':<22}{'HeteroConv ms':>15}{'ours ms':>10}{'ratio':>8}")
    for row in results:
        medians = row["median_ms"]
        times = f"{medians['hetero_conv']:15.2f}{medians['simic']:10.2f}{row['ratio']:8.2f}"
        lines.append(f"{row['graphs']:8}  {row['work'].replace('_', ' '):<22}{times}")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
