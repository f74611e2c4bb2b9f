"""Grow the small CNN under several controllers, on the same hosts, and print how they compare.

python compare.py [--policy champion] [--hosts 16] [--epochs 16] [--workers 2]
"""

from __future__ import annotations

import argparse

from rich.console import Console

from simic.app.container import Container
from simic.cli.console import errors_become_exit_codes
from simic.cli.tables import trial_table
from simic.contracts.controllers import ControllerSpec, HeuristicRules, Plan, PlannedSeed
from simic.contracts.results.trials import TrialReport
from simic.contracts.settings.run import RunConfig, TrialConfig, WorldConfig
from simic.contracts.splits import Split
from simic.hosts.host_sets import draw_keys, identify
from simic.runtime.clock import utc_now
from simic.runtime.home import resolve_home
from simic.runtime.progress import RichProgress
from simic.validation.trials import TrialSettings, run_trials

SET = "own_cnn"
"""A family's name is a set of its own."""
PLAN = Plan(seeds=[PlannedSeed(epoch=1, slot=1, blueprint="gate")])
"""A schedule that looks at nothing: a gate behind the second convolution, in epoch 1."""


def compare(policies: list[str], hosts: int, epochs: int, workers: int | None) -> TrialReport:
    """``policies``: by any name that `simic trials` takes."""
    config = RunConfig(
        world=WorldConfig(set=SET, horizon=epochs, workers=workers), trial=TrialConfig(hosts_per_family=hosts)
    )
    container = Container(resolve_home(), config, seed=0)
    specs = {
        "random": ControllerSpec(name="random"),
        "heuristic": ControllerSpec(name="heuristic", rules=HeuristicRules()),
        "schedule": ControllerSpec(name="schedule", plan=PLAN),
    }
    for name in policies:
        spec = container.policies.spec(name, is_decisive=True)
        specs[container.policies.label(name, spec)] = spec
    keys = draw_keys(SET, Split.TEST, hosts)
    with RichProgress().task("trials", len(keys) * len({*specs, "wait"})) as advance:  # wait always takes part
        return run_trials(
            specs,
            identify(SET, keys),
            TrialSettings.of(config),
            provenance=container.provenance,
            clock=utc_now,
            on_done=lambda episodes: advance(len(episodes.returns)),
        )


def main() -> None:
    """Read the command line and print the table."""
    parser = argparse.ArgumentParser(description="Grow the small CNN under several controllers.")
    parser.add_argument("--policy", action="append", default=[], help="champion, tamiyo/2, a digest or a folder")
    parser.add_argument("--hosts", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--workers", type=int, help="processes; one per core, unless told otherwise")
    chosen = parser.parse_args()
    with errors_become_exit_codes():
        Console().print(trial_table(compare(chosen.policy, chosen.hosts, chosen.epochs, chosen.workers)))


if __name__ == "__main__":
    main()
