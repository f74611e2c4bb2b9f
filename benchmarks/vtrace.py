"""V-trace on one CPU thread: Simic against TorchRL's ``vtrace_advantage_estimate``, same result asserted.

Usage: python benchmarks/vtrace.py [--json] [--out FILE] [--check] [--repetitions N]
T time, B batch. Both get their own native layout, prepared outside the clock; repetitions are interleaved.
``--check`` exits 1 below the target ratio.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from simic.numerics.vtrace import vtrace

STEPS, BATCH, GAMMA = 150, 32, 0.99
TARGET = 5.0
"""The ratio to reach."""


def make_case() -> tuple[dict[str, Tensor], Tensor]:
    """Sequences that end inside the batch, some terminated and some truncated."""
    generator = torch.Generator().manual_seed(0)

    def normal() -> Tensor:
        return torch.randn(STEPS, BATCH, generator=generator)

    is_cut = torch.rand(STEPS, BATCH, generator=generator) < 0.05
    is_cut[-1] = True
    terminated = is_cut & (torch.rand(STEPS, BATCH, generator=generator) < 0.5)
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


def measure(contenders: dict[str, Callable[[], object]], repetitions: int) -> dict[str, list[float]]:
    """Seconds of each call; the contenders take turns, so that a busy machine slows all alike."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repetitions):
        for name, call in contenders.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--out", type=Path, help="also write the results here, as JSON")
    parser.add_argument("--check", action="store_true", help=f"exit 1 below {TARGET:g}x")
    parser.add_argument("--repetitions", type=int, default=400)
    arguments = parser.parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchrl.objectives.value.functional import vtrace_advantage_estimate

    torch.set_num_threads(1)
    case, terminated = make_case()
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
    measure(contenders, 20)
    times = measure(contenders, arguments.repetitions)
    medians_us = {name: 1e6 * statistics.median(values) for name, values in times.items()}
    ratio = medians_us["torchrl"] / medians_us["simic"]
    sizes = {"T": STEPS, "B": BATCH, "threads": 1, "target_ratio": TARGET}
    text = json.dumps({"name": "vtrace", **sizes, "median_us": medians_us, "ratio": ratio})
    if arguments.out is not None:
        arguments.out.write_text(text + "\n", "utf-8")
    print(text if arguments.json else table_of(medians_us, arguments.repetitions))
    return int(arguments.check and ratio < TARGET)


def table_of(medians_us: dict[str, float], repetitions: int) -> str:
    """For people."""
    head = f"V-trace, T={STEPS} B={BATCH}, 1 thread, median of {repetitions} interleaved calls, same result"
    lines = [head, f"{'':10}{'us/call':>10}{'speed-up':>10}"]
    for name, median in medians_us.items():
        lines.append(f"{name:10}{median:10.0f}{medians_us['torchrl'] / median:9.1f}x")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
