"""A whole V-trace update against the same one written plainly with PyTorch Geometric, in transitions per second.

Usage: python benchmarks/learner.py [--json] [--out FILE] [--check] [--repetitions N] [--device cpu|cuda]
An update assembles its batch from the data set, computes the loss, its gradient and AdamW's step, on one thread. The
peer holds a list of ``HeteroData``, batches it with ``Batch.from_data_list``, passes messages with ``HeteroConv`` and
loops over heads and time (``peers/plain_learner.py``); it computes no metrics, of which ours has twenty. Both have the
same weights, and their gradients are asserted equal. The network alone is forward and backward of logits and values on
graphs that are assembled already. Episodes are real: benchmark hosts grown by ``explore`` for 20 epochs.
Times are processor times. The process keeps memory that it freed (glibc's ``MALLOC_TRIM_THRESHOLD_``): else whichever
contender happens to have the top of the heap pays page faults for both.
``--check`` exits 1 below the target ratio, or if the network alone is slower, or beyond a budget of the design.
With ``--device cuda`` ours alone runs there, in every precision: wall time, transitions per second and kernel launches
of an update; ``--check`` asks for 100,000 transitions a second with all sequences in float32.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from common.command_line import make_parser, show
from peers.plain_learner import PlainLearner
from torch.profiler import ProfilerActivity, profile

from simic.contracts.batches import Masks, Observations
from simic.contracts.settings.run import WorldConfig
from simic.contracts.settings.training import TrainConfig
from simic.controllers.features import encode
from simic.controllers.heads import MaskTensors
from simic.controllers.plugins.explore import ExploreController
from simic.hosts.ensemble import Ensemble
from simic.hosts.host_sets import identify
from simic.hosts.plugins import blueprint_names
from simic.hosts.rollout import Step, rollout
from simic.learning.learner import Learner
from simic.learning.losses import Loss
from simic.learning.objectives.vtrace import vtrace_loss
from simic.learning.phases import fresh_network
from simic.learning.rates import LrSchedule
from simic.numerics.vtrace import vtrace
from simic.replay.dataset import GraphDataset, Steps
from simic.replay.graph_table import GraphTable
from simic.replay.rows import Sequences

SEQUENCES, HORIZON, GAMMA, SCALE = 192, 20, 0.99, 1.0
SIZES = (32, SEQUENCES)
"""Sequences of an update: the default of ``train.batch_sequences``, and all."""
TARGET = 4.0
"""The ratio to reach with all sequences."""
BUDGETS_MS = {"step of 32 samples": 500.0, "V-trace": 50.0}
KEEP = {"MALLOC_TRIM_THRESHOLD_": "1000000000", "MALLOC_MMAP_THRESHOLD_": "1000000000"}
CUDA_PER_S = 100_000.0
"""Transitions per second to reach on a GPU."""
BUDGET_PER_S = 250.0
"""Experiences per second that the design asks for: 180 to 250."""


def make_store() -> GraphDataset:
    """Grow the hosts of one data set; rewards are drawn, because nothing here depends on their meaning."""
    hosts = identify("benchmark", range(SEQUENCES))
    steps = list(rollout(Ensemble(hosts, WorldConfig(horizon=HORIZON)), ExploreController().decide, seed=0))
    by_host = np.arange(HORIZON * SEQUENCES).reshape(HORIZON, SEQUENCES).T.ravel()
    states = Observations.join([step.observations for step in steps]).take(by_host)
    rewards = np.random.default_rng(0).normal(size=(SEQUENCES, HORIZON)).astype(np.float32)
    discounts = np.full((SEQUENCES, HORIZON), GAMMA, dtype=np.float32)
    discounts[:, -1] = 0.0
    returns = np.array(
        [[np.sum(row[t:] * GAMMA ** np.arange(HORIZON - t)) for t in range(HORIZON)] for row in rewards],
        dtype=np.float32,
    )
    log_probs = np.nan_to_num(np.concatenate([step.decisions.log_probs for step in steps])[by_host])
    columns = (log_probs, log_probs.sum(1), *(column.ravel() for column in (rewards, discounts, returns)))
    actions = torch.from_numpy(np.concatenate([step.decisions.actions for step in steps])[by_host]).long()
    return GraphDataset(
        _sequences(),
        Steps(actions, *(torch.from_numpy(column) for column in columns)),
        MaskTensors.of(_masks(steps, states.slot_ptr, by_host)),
        GraphTable.of(encode(Observations.join([states, steps[-1].after]))),
        blueprint_names(),
    )


def _sequences() -> Sequences:
    count = SEQUENCES
    texts = [tuple(f"{index:032x}" for index in range(count)), (None,) * count]
    names = [(name,) * count for name in ("explore", "benchmark", "cap")]
    starts = np.arange(count) * HORIZON
    lengths, none = np.full(count, HORIZON), np.full(count, -1)
    return Sequences(*texts, *names, np.arange(count), starts, lengths, (None,) * count, none)


def _masks(steps: list[Step], slot_ptr: np.ndarray, by_host: np.ndarray) -> Masks:
    """Return the masks of all steps, host by host; a host has the same slots in every step."""
    each = [step.masks for step in steps]
    op, blueprint = (np.concatenate([getattr(masks, name) for masks in each])[by_host] for name in ("op", "blueprint"))
    first = steps[0].observations.slot_ptr
    slot = np.concatenate([masks.slot[first[h] : first[h + 1]] for h in range(SEQUENCES) for masks in each])
    assert len(slot) == slot_ptr[-1]
    return Masks(op=op, slot=slot, blueprint=blueprint)


class Ours:
    """The learner, and the loss of ``train.objective = vtrace``."""

    def __init__(self, store: GraphDataset, config: TrainConfig) -> None:
        self.store, self.config = store, config
        self.learner = Learner(fresh_network(store, config, 0), config)

    def loss(self, ids: np.ndarray) -> Loss:
        """Assemble the sequences, and return their loss."""
        return vtrace_loss(self.learner.network, self.store.batch(ids), self.config, SCALE)

    def update(self, ids: np.ndarray) -> None:
        """Assemble, compute the loss and its gradient, clip per group and step."""
        self.learner.update(len(ids), lambda part: self.loss(ids[part]), LrSchedule.constant(0, 1.0), 0)


def assert_equal_gradients(ours: Ours, peer: PlainLearner, ids: np.ndarray) -> float:
    """Compare the gradients of all parameters at the same weights; returns the largest relative difference."""
    loss = ours.loss(ids)
    loss.total.backward()
    theirs = peer.loss(*peer.batch(ids.tolist()), len(ids))
    theirs.backward()
    assert abs(float(loss.total.detach() - theirs.detach())) <= 1e-5 * abs(float(theirs.detach()))
    other, worst = dict(peer.network.named_parameters()), 0.0
    for name, parameter in ours.learner.network.named_parameters():
        mine, own = parameter.grad, other[name].grad
        assert mine is not None and own is not None, name
        distance = float((mine - own).norm() / own.norm().clamp(min=1e-6))
        worst = max(worst, distance)
        assert distance <= 1e-4, (name, distance)
    for network in (ours.learner.network, peer.network):
        network.zero_grad(set_to_none=True)
    return worst


def measure(contenders: dict[str, Callable[[], object]], repetitions: int) -> dict[str, float]:
    """Median milliseconds of processor time per call; the contenders take turns."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repetitions):
        for name, call in contenders.items():
            start = time.process_time()
            call()
            times[name].append(time.process_time() - start)
    return {name: 1e3 * statistics.median(values) for name, values in times.items()}


def compare(store: GraphDataset, config: TrainConfig, sequences: int, repetitions: int) -> list[dict[str, Any]]:
    """The whole update and the network alone, both ways."""
    ours, ids = Ours(store, config), np.arange(sequences)
    peer = PlainLearner(ours.learner.network, store, config, SCALE)
    worst = assert_equal_gradients(ours, peer, ids)
    batch, plain = store.batch(ids).with_finals, peer.batch(ids.tolist())[1]

    def backward(network: torch.nn.Module, outputs: tuple[torch.Tensor, ...]) -> None:
        sum((column.square().mean() for column in outputs), torch.zeros(())).backward()
        network.zero_grad(set_to_none=True)

    mine, other = ours.learner.network, peer.network
    works: dict[str, dict[str, Callable[[], object]]] = {
        "network alone": {
            "pyg": lambda: backward(other, other.outputs(plain)),
            "simic": lambda: backward(mine, mine(batch)),
        },
        "whole update": {"pyg": lambda: peer.update(ids.tolist()), "simic": lambda: ours.update(ids)},
    }
    results = []
    for work, contenders in works.items():
        measure(contenders, 3)
        medians = measure(contenders, repetitions)
        results.append(
            {
                "sequences": sequences,
                "work": work,
                "median_ms": medians,
                "ratio": medians["pyg"] / medians["simic"],
                "transitions_per_s": {name: 1e3 * sequences * HORIZON / ms for name, ms in medians.items()},
                "largest_relative_gradient_difference": worst,
            }
        )
    return results


def on_cuda(store: GraphDataset, config: TrainConfig, sequences: int, repetitions: int) -> list[dict[str, Any]]:
    """Our whole update on a CUDA device, with resident columns."""
    there, ids, results = store.to(torch.device("cuda")), np.arange(sequences), []
    for precision in ("float32", "bfloat16", "float16"):
        ours = Ours(there, config.model_copy(update={"precision": precision}))

        def update(ours: Ours = ours) -> None:
            ours.update(ids)
            torch.cuda.synchronize()

        seconds = []
        for _ in range(3 + repetitions):
            start = time.perf_counter()
            update()
            seconds.append(time.perf_counter() - start)
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            update()
        kernels = [event for event in seen.events() if "mem" not in event.name.lower()]
        median = statistics.median(seconds[3:])
        results.append(
            {
                "sequences": sequences,
                "precision": precision,
                "median_ms": 1e3 * median,
                "transitions_per_s": sequences * HORIZON / median,
                "launches": len(kernels),
            }
        )
    return results


def main_on_cuda(arguments: argparse.Namespace) -> int:
    """Print and check what ``on_cuda`` measures."""
    if not torch.cuda.is_available():
        raise SystemExit("--device cuda: this machine has no CUDA device that PyTorch can use")
    store = make_store()
    results = [row for size in SIZES for row in on_cuda(store, TrainConfig(), size, arguments.repetitions)]
    device = torch.cuda.get_device_name()
    lines = [f"{row['sequences']:6} {row['precision']:<9}{row['median_ms']:8.2f} ms" for row in results]
    rates = [f"{row['transitions_per_s']:12.0f} steps/s {row['launches']:6} launches" for row in results]
    table = "\n".join(line + rate for line, rate in zip(lines, rates, strict=True))
    result = {"name": "learner", "device": device, "target_per_s": CUDA_PER_S, "sizes": results}
    show(arguments, result, f"whole updates on {device}, wall time\n{table}")
    asked = next(row for row in results if (row["sequences"], row["precision"]) == (SEQUENCES, "float32"))
    return int(arguments.check and asked["transitions_per_s"] < CUDA_PER_S)


def vtrace_ms(repetitions: int) -> float:
    """Median milliseconds of V-trace itself over all sequences."""
    draw = torch.Generator().manual_seed(0)
    columns = [torch.randn(HORIZON, SEQUENCES, generator=draw) for _ in range(6)]
    names = ("log_prob_target", "log_prob_behaviour", "rewards", "discounts", "values", "next_values")
    is_cut = torch.zeros(HORIZON, SEQUENCES, dtype=torch.bool)
    case = dict(zip(names, columns, strict=True))
    return measure({"vtrace": lambda: vtrace(**case, is_cut=is_cut)}, 5 * repetitions)["vtrace"]


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 below the target ratio or beyond a budget")
    parser.add_argument("--repetitions", type=int, default=15, help="calls per contender")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments = parser.parse_args()
    if arguments.device == "cuda":
        return main_on_cuda(arguments)
    if KEEP.keys() - os.environ.keys():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **KEEP})  # noqa: S606
    torch.set_num_threads(1)
    store, config = make_store(), TrainConfig()
    results = [row for size in SIZES for row in compare(store, config, size, arguments.repetitions)]
    updates = {row["sequences"]: row["median_ms"]["simic"] for row in results if row["work"] == "whole update"}
    found = {"step of 32 samples": updates[SIZES[0]], "V-trace": vtrace_ms(arguments.repetitions)}
    rate = 1e3 * SIZES[0] * HORIZON / updates[SIZES[0]]
    budgets = [{"what": name, "budget_ms": budget, "found_ms": found[name]} for name, budget in BUDGETS_MS.items()]
    show(
        arguments,
        {
            "name": "learner",
            "threads": 1,
            "clock": "processor time",
            "steps": HORIZON,
            "target_ratio": TARGET,
            "sizes": results,
            "budgets": budgets,
            "budget_per_s": BUDGET_PER_S,
            "experiences_per_s": rate,
        },
        table_of(results, budgets, rate),
    )
    is_met = results[-1]["ratio"] >= TARGET and all(row["ratio"] >= 1.0 for row in results)
    is_within = rate >= BUDGET_PER_S and all(one["found_ms"] <= one["budget_ms"] for one in budgets)
    return int(arguments.check and not (is_met and is_within))


def table_of(results: list[dict[str, Any]], budgets: list[dict[str, Any]], rate: float) -> str:
    """Return the results as a text table: milliseconds per call, the ratio PyG / ours, and the budgets."""
    lines = [f"V-trace updates of {HORIZON} steps per sequence, 1 thread, processor time, equal gradients"]
    lines.append(f"{'sequences':>10}  {'work':<16}{'PyG ms':>10}{'ours ms':>10}{'ratio':>8}{'steps/s':>10}")
    for row in results:
        medians = row["median_ms"]
        numbers = f"{medians['pyg']:10.1f}{medians['simic']:10.1f}{row['ratio']:8.2f}"
        lines.append(f"{row['sequences']:10}  {row['work']:<16}{numbers}{row['transitions_per_s']['simic']:10.0f}")
    for one in budgets:
        lines.append(f"{one['what']}: {one['found_ms']:.2f} ms of {one['budget_ms']:g} ms")
    lines.append(f"experiences per second: {rate:.0f}, budget {BUDGET_PER_S:g}")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
