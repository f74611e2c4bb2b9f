"""What elastic weight consolidation and low-rank adapters cost, beside the budgets of the design.

Usage: python benchmarks/continual.py [--json] [--out FILE] [--check] [--repetitions N]
The Fisher diagonal of the default network over 200 states of real hosts, against a plain loop of one backward pass per
state in the same run; both see the same states and actions, and are asserted equal. Then the penalty of one update, the
forward pass of a network with adapters of rank 16 against that of the plain one at one decision of 64 hosts, and their
merging. Times are processor times on one thread, medians of calls in turn.
``--check`` exits 1 above a budget: 10 ms per 1,000 parameters for the Fisher diagonal, 5 ms more per forward pass for
the adapters.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from common.command_line import make_parser, show
from learner import make_store, measure
from torch import Tensor

from simic.contracts.actions import HEADS
from simic.contracts.settings.continual import LoraConfig
from simic.contracts.settings.training import TrainConfig
from simic.controllers.heads import ActionDistribution
from simic.controllers.network import PolicyNetwork
from simic.learning.continual.ewc import Anchor, ElasticPenalty, deciding_parameters, fisher_diagonal
from simic.learning.continual.lora import adapt, merged
from simic.learning.phases import fresh_network
from simic.replay.dataset import GraphDataset
from simic.runtime.seeds import generator

SAMPLES, SEED = 200, 0
ACTING_GRAPHS = 64
FISHER_BUDGET_MS, LORA_BUDGET_MS = 10.0, 5.0
"""Per 1,000 parameters, and per forward pass."""


def plain_fisher(network: PolicyNetwork, store: GraphDataset) -> dict[str, Tensor]:
    """The same states and actions, one forward and one backward pass for each."""
    open_rows = np.flatnonzero(store.masks.op[:, 1:].any(1).numpy())
    rows = np.sort(generator(SEED, "states").permutation(open_rows)[:SAMPLES])
    uniforms = generator(SEED, "actions").random((len(rows), len(HEADS)))
    sums = {name: torch.zeros_like(value) for name, value in deciding_parameters(network).items()}
    parameters = {name: value for name, value in network.named_parameters() if name in sums}
    for index, row in enumerate(rows.tolist()):
        states, masks = store.states(np.array([row]))
        output = network.act_of_all_weights(states)
        distribution = ActionDistribution(output, states.slot_ptr, masks, exploration=0.0)
        drawn = distribution.sample(uniforms[index : index + 1])
        log_prob = distribution.log_prob(torch.from_numpy(drawn.actions)).joint.sum()
        gradients = torch.autograd.grad(log_prob, list(parameters.values()), allow_unused=True)
        for name, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                sums[name] += gradient.square()
    return {name: value / len(rows) for name, value in sums.items()}


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Compare all parameters; returns the largest relative difference."""
    assert set(found) == set(expected)
    worst = 0.0
    for name, value in expected.items():
        distance = float((found[name] - value).norm() / value.norm().clamp(min=1e-9))
        assert distance <= 1e-4, (name, distance)
        worst = max(worst, distance)
    return worst


def fisher_results(network: PolicyNetwork, store: GraphDataset, repetitions: int) -> dict[str, Any]:
    """Fisher diagonal both ways, and the penalty with its gradient."""
    thousands = sum(value.numel() for value in network.parameters()) / 1e3
    found = fisher_diagonal(network, store, SAMPLES, SEED)
    worst = assert_equal(found.diagonal, plain_fisher(network, store))
    penalty = ElasticPenalty(0.1, Anchor(deciding_parameters(network), found.diagonal))
    medians_ms = measure(
        {
            "simic": lambda: fisher_diagonal(network, store, SAMPLES, SEED),
            "plain": lambda: plain_fisher(network, store),
            "penalty": lambda: penalty(network).backward(),
        },
        repetitions,
    )
    network.zero_grad(set_to_none=True)
    return {
        "samples": found.samples,
        "parameters": round(1e3 * thousands),
        "median_ms": medians_ms,
        "ms_per_1000": {name: medians_ms[name] / thousands for name in ("simic", "plain")},
        "ratio": medians_ms["plain"] / medians_ms["simic"],
        "worst_relative_difference": worst,
        "budget_ms_per_1000": FISHER_BUDGET_MS,
    }


def lora_results(network: PolicyNetwork, store: GraphDataset, repetitions: int) -> dict[str, Any]:
    """Forward passes with and without adapters, and merging."""
    adapted = copy.deepcopy(network)
    adapt(adapted, LoraConfig(rank=16), torch.Generator().manual_seed(0))
    adapted.eval()
    states, _ = store.states(np.arange(ACTING_GRAPHS))

    def forward(one: PolicyNetwork) -> None:
        with torch.inference_mode():
            one.act(states)

    contenders = {
        "adapted": lambda: forward(adapted),
        "plain": lambda: forward(network),
        "merge": lambda: merged(adapted),
    }
    medians_ms = measure(contenders, 20 * repetitions)
    return {
        "rank": 16,
        "graphs": ACTING_GRAPHS,
        "median_ms": medians_ms,
        "added_ms": medians_ms["adapted"] - medians_ms["plain"],
        "budget_ms": LORA_BUDGET_MS,
    }


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 above a budget of the design")
    parser.add_argument(
        "--repetitions", type=int, default=5, help="calls per contender; of forward passes 20 times as many"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    store = make_store()
    network = fresh_network(store, TrainConfig(), 0).eval()
    result = {
        "name": "continual",
        "threads": 1,
        "ewc": fisher_results(network, store, arguments.repetitions),
        "lora": lora_results(network, store, arguments.repetitions),
    }
    show(arguments, result, table_of(result))
    is_met = result["ewc"]["ms_per_1000"]["simic"] < FISHER_BUDGET_MS and result["lora"]["added_ms"] < LORA_BUDGET_MS
    return int(arguments.check and not is_met)


def table_of(result: dict[str, Any]) -> str:
    """For people."""
    ewc, lora = result["ewc"], result["lora"]
    both, per, own = ewc["median_ms"], ewc["ms_per_1000"], lora["median_ms"]
    return "\n".join(
        [
            f"Fisher diagonal, {ewc['samples']} states, {ewc['parameters']:,} parameters, 1 thread, processor times",
            f"  one backward pass  {both['simic']:8.1f} ms {per['simic']:6.2f} ms per 1,000 parameters",
            f"  a loop of {ewc['samples']}     {both['plain']:8.1f} ms {per['plain']:6.2f}, {ewc['ratio']:.1f}x",
            f"  penalty of an update with its gradient {both['penalty']:.2f} ms",
            f"Adapters of rank {lora['rank']}, {lora['graphs']} graphs: forward {own['adapted']:.2f} ms, "
            f"plain {own['plain']:.2f} ms, merging {own['merge']:.2f} ms",
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main())
