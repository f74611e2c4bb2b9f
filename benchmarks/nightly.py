"""Overhead of a nightly run beyond its stages, against Prefect's own overhead for a flow that does nothing.

Usage: python benchmarks/nightly.py [--json] [--out FILE] [--check] [--repetitions N]
Starts the services in a home of its own, then measures in turn: `prefect deployment run` of an empty flow, the same of
simic/nightly, and `simic nightly`. Overhead is the wall clock of the command less the run times of the stages, as
Prefect's API tells them. The profile is tiny, so that the stages take seconds. ``--check`` exits 1 above the target.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common.command_line import make_parser, show

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.builders.profiles import write_tiny_profile

from simic.cli.services.http import PrefectApi
from simic.cli.services.stack import POOL

TARGET_S = 12.0
"""Overhead of `prefect deployment run simic/nightly --watch` not to exceed, in seconds."""
BIN = Path(sys.executable).parent
EMPTY = "from prefect import flow\n\n\n@flow(name='empty')\ndef empty() -> None:\n    pass\n"


class Bench:
    """Services in a home of their own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        home = root / "home"
        own = {"PREFECT_HOME": f"{home}/.prefect", "PREFECT_PROFILES_PATH": f"{home}/.prefect/profiles.toml"}
        self.environment = {**os.environ, **own, "SIMIC_HOME": str(home), "DO_NOT_TRACK": "1"}

    def command(self, *arguments: str, allowed: tuple[int, ...] = (0,)) -> tuple[float, str]:
        """Seconds and standard output of a command that must end with one of the allowed codes."""
        start = time.perf_counter()
        done = subprocess.run(
            [str(BIN / arguments[0]), *arguments[1:]],
            env=self.environment,
            cwd=self.root,
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.perf_counter() - start
        assert done.returncode in allowed, (arguments, done.returncode, done.stdout + done.stderr)
        return seconds, done.stdout

    def up(self) -> PrefectApi:
        """Start the services; the API is asked with the login of the home."""
        _, records = self.command("simic", "up", "--port", _free_port(), "--mlflow-port", _free_port(), "--json")
        server = next(record for record in json.loads(records) if record["name"] == "prefect-server")
        return PrefectApi(f"{server['url']}/api", Path(server["login"]).read_text().strip())

    def profile(self, name: str, episodes: int) -> str:
        return str(write_tiny_profile(self.root / f"{name}.toml", rounds=0, episodes=episodes))


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def deploy_empty(api: PrefectApi, folder: Path) -> None:
    """A flow that does nothing, as a deployment of the same work pool."""
    (folder / "empty.py").write_text(EMPTY)
    deployment = {
        "name": "empty",
        "flow_id": api.post("flows/", {"name": "empty"})["id"],
        "work_pool_name": POOL,
        "entrypoint": "empty.py:empty",
        "pull_steps": [{"prefect.deployments.steps.set_working_directory": {"directory": str(folder)}}],
    }
    api.post("deployments/", deployment)


def stages_s(api: PrefectApi) -> float:
    """Run times of all stages of the newest run of the flow, in seconds."""
    ended = {"flows": {"name": {"any_": ["simic"]}}, "flow_runs": {"state": {"type": {"any_": ["COMPLETED"]}}}}
    run = api.post("flow_runs/filter", {**ended, "sort": "END_TIME_DESC", "limit": 1})[0]
    stages = api.post("task_runs/filter", {"flow_runs": {"id": {"any_": [run["id"]]}}})
    assert {stage["state_type"] for stage in stages} == {"COMPLETED"}, stages
    return float(sum(stage["total_run_time"] for stage in stages))


def measure(repetitions: int) -> dict[str, list[float]]:
    """Seconds of overhead by command; the commands take turns, so that a busy machine slows all alike."""
    overheads: dict[str, list[float]] = {"empty flow": [], "prefect deployment run": [], "simic nightly": []}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        try:
            api = bench.up()
            deploy_empty(api, bench.root)
            bench.command("simic", "collect", "--profile", bench.profile("collect", 20))
            offline = bench.profile("offline", 0)
            watched = ("prefect", "deployment", "run", "simic/nightly", "--param", f'profile="{offline}"', "--watch")
            for _ in range(repetitions):
                seconds, _ = bench.command("prefect", "deployment", "run", "empty/empty", "--watch")
                overheads["empty flow"].append(seconds)
                seconds, _ = bench.command(*watched)
                overheads["prefect deployment run"].append(seconds - stages_s(api))
                seconds, _ = bench.command("simic", "nightly", "--profile", offline, allowed=(0, 3))
                overheads["simic nightly"].append(seconds - stages_s(api))
        finally:
            bench.command("simic", "down")
    return overheads


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--check", action="store_true", help=f"exit 1 above {TARGET_S:g} s")
    parser.add_argument("--repetitions", type=int, default=3)
    arguments = parser.parse_args()
    medians = {name: statistics.median(found) for name, found in measure(arguments.repetitions).items()}
    watched = medians["prefect deployment run"]
    facts: dict[str, Any] = {"name": "nightly", "target_s": TARGET_S, "repetitions": arguments.repetitions}
    over = {name: seconds / medians["empty flow"] for name, seconds in medians.items()}
    result = {**facts, "median_overhead_s": medians, "over_empty_flow": over}
    show(arguments, result, table_of(medians, arguments.repetitions))
    return int(arguments.check and watched > TARGET_S)


def table_of(medians: dict[str, float], repetitions: int) -> str:
    """For people."""
    lines = [f"overhead beyond the stages, median of {repetitions} runs in turn", f"{'':26}{'s':>8}{'ratio':>8}"]
    for name, median in medians.items():
        lines.append(f"{name:26}{median:8.1f}{median / medians['empty flow']:8.2f}")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
