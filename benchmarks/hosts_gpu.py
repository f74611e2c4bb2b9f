"""Growing hosts on a GPU: the masked form, an epoch of all hosts recorded once as a CUDA graph and replayed.

Usage: python benchmarks/hosts_gpu.py [--json] [--out FILE] [--cpu] [--sizes N ...] [--epochs N]
Env-steps are host epochs with their decision, so a step of the ensemble is N of them: actions, training, validation
with counterfactuals, governor, gates. Times are wall-clock, since a step ends with a reading of its results. Every host
germinates a seed in epoch 0; what takes part makes no difference to the masked form. Launches are what the host asks
of the device in one epoch, kernels what the device then runs. Exits with 4 where there is no GPU. ``--cpu`` measures
both forms on one thread of the CPU instead, in CPU seconds, for information: the masked form is not made for it.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import numpy as np
import torch
from common.command_line import make_parser, show
from numpy.typing import NDArray
from torch.profiler import ProfilerActivity, profile

from simic.contracts.actions import HEADS, Op
from simic.contracts.batches import OP_INDEX
from simic.contracts.settings.run import WorldConfig
from simic.hosts.ensemble import Ensemble
from simic.hosts.host_sets import STANDARD, identify

NO_GPU = 4
WARM = 3
"""Epochs before the clock starts: everything is recorded, and most seeds are felt."""
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch")
"""Beginnings of the names of calls that start work on the device."""
TRANSFERS = ("Memcpy", "Memset")


def waits(ensemble: Ensemble) -> NDArray[np.int16]:
    """Everybody waits."""
    rows = np.full((len(ensemble), len(HEADS)), -1, dtype=np.int16)
    rows[:, 0] = OP_INDEX[Op.WAIT]
    return rows


def germinations(ensemble: Ensemble) -> NDArray[np.int16]:
    """Every host germinates a seed, all slots and blueprints in turn."""
    host, slots = np.arange(len(ensemble)), 3
    kinds = np.array([ensemble.blueprints.index(name) for name in STANDARD])
    rows = waits(ensemble)
    rows[:] = np.array([OP_INDEX[Op.GERMINATE], 0, 0, -1, -1, -1, 0], dtype=np.int16)
    rows[:, 1], rows[:, 2], rows[:, -1] = host // len(kinds) % slots, kinds[host % len(kinds)], host % 2
    return rows


def measure(hosts: int, epochs: int, world: WorldConfig) -> dict[str, Any]:
    """Speed, launches and memory of one ensemble."""
    now = time.perf_counter if world.device == "cuda" else time.process_time
    start = now()
    ensemble = Ensemble(identify("benchmark", range(hosts)), world)
    ready_s = now() - start
    actions, seconds = germinations(ensemble), []
    for _ in range(WARM + epochs):
        start = now()
        ensemble.step(actions)
        seconds.append(now() - start)
        actions = waits(ensemble)
    result: dict[str, Any] = {
        "hosts": hosts,
        "form": "masked" if world.is_masked else "compacted",
        "device": world.device,
        "ready_s": ready_s,
        "first_step_s": seconds[0],
        "step_ms": 1e3 * statistics.median(seconds[WARM:]),
        "env_steps_per_s": hosts / statistics.median(seconds[WARM:]),
    }
    if world.device == "cuda":
        result.update(launches_of(ensemble), peak_mib=torch.cuda.max_memory_allocated() / 2**20)
    return result


def launches_of(ensemble: Ensemble) -> dict[str, int]:
    """Of one epoch in which nobody acts."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        ensemble.step(waits(ensemble))
        torch.cuda.synchronize()
    events = trace.events()
    on_device = [event.name for event in events if event.device_type == torch.autograd.DeviceType.CUDA]
    return {
        "launches": sum(event.name.startswith(LAUNCHES) for event in events),
        "graph_launches": sum(event.name.startswith("cudaGraphLaunch") for event in events),
        "kernels": sum(not name.startswith(TRANSFERS) for name in on_device),
    }


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--check", action="store_true", help="accepted like everywhere; there is no target yet to miss")
    parser.add_argument("--cpu", action="store_true", help="compare both forms on the CPU")
    parser.add_argument("--sizes", type=int, nargs="+", help="hosts stacked; 1024 and 4096, on a CPU 64")
    parser.add_argument("--epochs", type=int, default=12, help="epochs timed, at most 16")
    options = parser.parse_args()
    if not options.cpu and not torch.cuda.is_available():
        print(
            f"hosts_gpu.py needs a GPU: PyTorch {torch.__version__} finds no CUDA device, so nothing was measured; "
            "--cpu compares both forms on the CPU",
            file=sys.stderr,
        )
        return NO_GPU
    torch.set_num_threads(1)
    if options.cpu:
        worlds = [WorldConfig(form="compacted"), WorldConfig(form="masked")]
    else:
        worlds = [WorldConfig(device="cuda", snapshot_mb=4096)]
    sizes = options.sizes or ([64] if options.cpu else [1024, 4096])
    rows = [measure(hosts, options.epochs, world) for hosts in sizes for world in worlds]
    device = "CPU, one thread" if options.cpu else torch.cuda.get_device_name()
    result = {"name": "hosts_gpu", "device": device, "torch": torch.__version__, "sizes": rows}
    show(options, result, table_of(rows, device))
    return 0


def table_of(rows: list[dict[str, Any]], device: str) -> str:
    """For people."""
    columns = ("hosts", "form", "ready_s", "first_step_s", "step_ms", "env_steps_per_s")
    columns += tuple(name for name in ("launches", "graph_launches", "kernels", "peak_mib") if name in rows[0])
    lines = [f"hosts on {device}: seconds of set-up and of the first step, then the median step"]
    lines.append("".join(f"{name:>17s}" for name in columns))
    for row in rows:
        cells = (f"{row[name]:.2f}" if isinstance(row[name], float) else str(row[name]) for name in columns)
        lines.append("".join(f"{cell:>17s}" for cell in cells))
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
