"""V-trace on one CPU thread: Simic against TorchRL's ``vtrace_advantage_estimate``, same result asserted.

Usage: python benchmarks/vtrace.py [--json] [--out FILE] [--check] [--repetitions N]
T time, B batch. Both get their own native layout, prepared outside the clock. The contenders take turns of ten calls,
so a busy machine slows both alike; after every call of the other one, caches and branch predictions would be cold, and
"alternating" shows the ratio of such calls. Times are processor times. ``--check`` exits 1 below a target ratio.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from common.command_line import make_parser, show
from torch import Tensor

from simic.numerics.vtrace import vtrace

BATCH, GAMMA = 32, 0.99
TARGETS = {150: 7.0, 1000: 15.0}
"""The ratio to reach, by T."""
CALLS = 10
"""Calls of a turn."""


def make_case(steps: int) -> tuple[dict[str, Tensor], Tensor]:
    """Sequences that end inside the batch, some terminated and some truncated."""
    generator = torch.Generator().manual_seed(0)

    def normal() -> Tensor:
        return torch.randn(steps, BATCH, generator=generator)

    is_cut = torch.rand(steps, BATCH, generator=generator) < 0.05
    is_cut[-1] = True
    terminated = is_cut & (torch.rand(steps, BATCH, generator=generator) < 0.5)
    values, elsewhere = normal(), normal()
    case = {
        "log_prob_target": 0.3 * normal(),
        "log_prob_behaviour": 0.3 * normal(),
        "rewards": normal(),
        "discounts": GAMMA * (~terminated).float(),
        "values": values,
        "next_values": torch.where(is_cut, elsewhere, torch.cat([values[1:], elsewhere[:1]])),
        "is_cut": is_cut,
    }
    return case, terminated


def measure(contenders: dict[str, Callable[[], object]], turns: int, calls: int) -> dict[str, float]:
    """Median microseconds of a call; the contenders take turns of ``calls`` calls."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(turns):
        for name, call in contenders.items():
            start = time.process_time()
            for _ in range(calls):
                call()
            times[name].append((time.process_time() - start) / calls)
    return {name: 1e6 * statistics.median(values) for name, values in times.items()}


def compare(steps: int, repetitions: int) -> dict[str, Any]:
    """Assert equal results, then measure in turns of ten calls and in alternating calls."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchrl.objectives.value.functional import vtrace_advantage_estimate

    case, terminated = make_case(steps)
    names = ("log_prob_target", "log_prob_behaviour", "values", "next_values", "rewards", "is_cut")
    theirs = [case[name].t().unsqueeze(-1).contiguous() for name in names]
    theirs.append(terminated.t().unsqueeze(-1).contiguous())

    def simic() -> object:
        return vtrace(**case)

    def torchrl() -> object:
        with torch.no_grad():
            return vtrace_advantage_estimate(GAMMA, *theirs)

    ours, (advantages, vs) = simic(), torchrl()
    torch.testing.assert_close(ours.vs, vs[..., 0].t(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.pg_advantages, advantages[..., 0].t(), rtol=1e-5, atol=1e-5)

    contenders = {"simic": simic, "torchrl": torchrl}
    measure(contenders, 2, CALLS)
    medians, alternating = measure(contenders, repetitions // CALLS, CALLS), measure(contenders, repetitions // 4, 1)
    return {
        "T": steps,
        "B": BATCH,
        "target_ratio": TARGETS[steps],
        "median_us": medians,
        "ratio": medians["torchrl"] / medians["simic"],
        "alternating_ratio": alternating["torchrl"] / alternating["simic"],
    }


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 below a target ratio")
    parser.add_argument("--repetitions", type=int, default=400, help="calls per contender and size")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sizes = [compare(steps, arguments.repetitions) for steps in TARGETS]
    result = {"name": "vtrace", "threads": 1, "clock": "processor time", "sizes": sizes}
    show(arguments, result, table_of(sizes, arguments.repetitions))
    return int(arguments.check and any(size["ratio"] < size["target_ratio"] for size in sizes))


def table_of(sizes: list[dict[str, Any]], repetitions: int) -> str:
    """For people."""
    lines = [f"V-trace, B={BATCH}, 1 thread, median of {repetitions} calls in turns of {CALLS}, same result"]
    lines.append(f"{'T':>6}{'ours us':>10}{'TorchRL us':>12}{'ratio':>8}{'alternating':>13}")
    for size in sizes:
        medians = size["median_us"]
        numbers = f"{medians['simic']:10.0f}{medians['torchrl']:12.0f}{size['ratio']:7.1f}x"
        lines.append(f"{size['T']:6}{numbers}{size['alternating_ratio']:12.1f}x")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
