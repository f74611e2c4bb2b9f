"""Grow one seed of every blueprint in either slot of a narrow network, on the same hosts, and print what it gains.

python compare.py [--set narrow_cnn] [--hosts 32] [--epochs 20] [--workers 2]
"""

from __future__ import annotations

import argparse
from itertools import product

from rich.console import Console

from simic.app.container import Container
from simic.cli.console import errors_become_exit_codes
from simic.cli.tables import trial_table
from simic.contracts.controllers import ControllerSpec, Plan, PlannedSeed
from simic.contracts.results.trials import TrialReport
from simic.contracts.settings.run import RunConfig, TrialConfig, WorldConfig
from simic.contracts.splits import Split
from simic.hosts.host_sets import draw_keys, host_set, identify
from simic.runtime.clock import utc_now
from simic.runtime.home import resolve_home
from simic.validation.trials import TrialSettings, run_trials

SLOTS = (0, 1)


def compare(set_name: str, hosts: int, epochs: int, workers: int | None) -> TrialReport:
    """Return the trials of every schedule that germinates one seed in epoch 1 and keeps it if it helps."""
    config = RunConfig(
        world=WorldConfig(set=set_name, horizon=epochs, workers=workers), trial=TrialConfig(hosts_per_family=hosts)
    )
    container = Container(resolve_home(), config, seed=0)
    specs = {
        f"{blueprint} {slot}": ControllerSpec(
            name="schedule", plan=Plan(seeds=[PlannedSeed(epoch=1, slot=slot, blueprint=blueprint)])
        )
        for blueprint, slot in product(host_set(set_name).blueprints, SLOTS)
    }
    return run_trials(
        specs,
        identify(set_name, draw_keys(set_name, Split.TEST, hosts)),
        TrialSettings.of(config),
        provenance=container.provenance,
        clock=utc_now,
    )


def main() -> None:
    """Read the command line and print the table."""
    parser = argparse.ArgumentParser(description="Grow single seeds in a narrow network.")
    parser.add_argument("--set", default="narrow_cnn", choices=["narrow_cnn", "narrow_mlp"])
    parser.add_argument("--hosts", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--workers", type=int, help="processes; one per core, unless told otherwise")
    chosen = parser.parse_args()
    with errors_become_exit_codes():
        Console().print(trial_table(compare(chosen.set, chosen.hosts, chosen.epochs, chosen.workers)))


if __name__ == "__main__":
    main()
