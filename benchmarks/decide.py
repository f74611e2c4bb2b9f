"""One decision through ``import simic``: a policy loaded once against one that is loaded for each decision.

Usage: python benchmarks/decide.py [--json] [--out FILE] [--repetitions N]
The policy has the default network; the states are those of benchmark hosts that it grows, as dictionaries of the wire
form. Loading verifies the seal. Also measured: a new process that imports the API and loads the policy, against one
that imports torch only. Times are of the processor, so that other work on the machine does not count.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common.command_line import make_parser, show

import simic
from simic.contracts.batches import masks_of
from simic.contracts.settings.network import NetworkConfig
from simic.contracts.settings.run import WorldConfig
from simic.contracts.state import HardwareContext
from simic.controllers.features import encode
from simic.controllers.learned_controller import LearnedController
from simic.controllers.network import NetworkShape, PolicyNetwork, fit_normaliser
from simic.controllers.policy_files import LoadedPolicy, describe, save_policy
from simic.hosts.ensemble import Ensemble
from simic.hosts.host_sets import identify
from simic.hosts.plugins import blueprint_names
from simic.hosts.rollout import rollout
from simic.trust.keys import Signer
from simic.trust.seal import seal

HOSTS = range(5)
LOADS = 5
"""Repetitions of everything that loads the policy or starts a process."""
SIGNER = Signer(bytes(range(32)))
IMPORT_ONLY = "import torch"
IMPORT_AND_LOAD = "import sys, simic; simic.load_policy(sys.argv[1], trusted_keys=[sys.argv[2]])"
Wire = tuple[dict[str, Any], dict[str, Any]]


def make_policy(directory: Path) -> list[Wire]:
    """Seal an untrained policy in ``directory`` and return state and masks of every epoch of the hosts it grows."""
    config, names = NetworkConfig(), blueprint_names()
    hosts = Ensemble(identify("benchmark", HOSTS), WorldConfig())
    network = PolicyNetwork(NetworkShape.of(config, names), 0)
    network.set_normaliser(fit_normaliser(encode(hosts.observe()), names))
    card = describe(
        network, config, set_name="benchmark", snapshot_digest=None, code_version="0.1.0", config_digest="0" * 64
    )
    save_policy(directory, network, card)
    seal(directory, SIGNER)
    controller = LearnedController(LoadedPolicy(network.eval(), card), policy_version=None, is_decisive=False)
    found: list[Wire] = []
    for step in rollout(hosts, controller.decide, 0):
        states = step.observations.to_states(HardwareContext(device="cpu", threads=1))
        for row in np.flatnonzero(step.live).tolist():
            masks = masks_of(step.masks, row, step.observations.slot_ptr, step.observations.blueprints)
            found.append((states[row].model_dump(mode="json"), masks.model_dump(mode="json")))
    return found


def load(directory: Path) -> simic.Policy:
    """Verify and load."""
    return simic.load_policy(directory, trusted_keys=[SIGNER.public_bytes.hex()])


def median_ms(call: Callable[[Wire], object], wires: list[Wire]) -> float:
    """Median processor time of one call."""
    times = []
    for wire in wires:
        start = time.process_time()
        call(wire)
        times.append(time.process_time() - start)
    return 1e3 * statistics.median(times)


def process_s(code: str, *arguments: str) -> float:
    """Median processor time of a new Python process."""
    times = []
    for _ in range(LOADS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code, *arguments], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(times)


def measure(repetitions: int | None) -> dict[str, float]:
    """All figures."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "policy"
        wires = make_policy(directory)[:repetitions]
        policy = load(directory)
        policy.decide(*wires[0])
        once = median_ms(lambda wire: policy.decide(*wire), wires)
        explained = median_ms(lambda wire: policy.explain(*wire), wires)
        each = median_ms(lambda wire: load(directory).decide(*wire), wires[:LOADS])
        together = median_ms(lambda _: policy.decide(*map(list, zip(*wires, strict=True))), wires[:LOADS])
        return {
            "decisions": len(wires),
            "decide_ms": once,
            "explain_ms": explained,
            "decide_together_ms": together / len(wires),
            "load_and_decide_ms": each,
            "ratio": each / once,
            "import_and_load_s": process_s(IMPORT_AND_LOAD, str(directory), SIGNER.public_bytes.hex()),
            "import_torch_s": process_s(IMPORT_ONLY),
        }


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--repetitions", type=int, help="decisions to measure; default: all of the hosts' episodes")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = measure(arguments.repetitions)
    result = {"name": "decide", "threads": 1, **found}
    table = "\n".join(f"{name:>24} {value:10.2f}" for name, value in found.items())
    show(arguments, result, table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
