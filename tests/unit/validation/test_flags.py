"""Flags of trials: the same as those that curation gives to reports of the same episodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.builders.observations import BLUEPRINTS
from support.homes.pipeline import NOW, PROVENANCE, FixedClock, curate_all

from simic.app.comparisons.comparison import compare_until_decided
from simic.app.container import Container
from simic.app.training import try_controllers
from simic.bus.factory import BusSpec, open_bus
from simic.collection.collect import collect
from simic.contracts.batches import Observations
from simic.contracts.controllers import ControllerSpec
from simic.contracts.lifecycle import SeedStage
from simic.contracts.results.trials import TrialReport
from simic.contracts.rewards import FlagConfig, RewardConfig
from simic.contracts.settings.run import IngestConfig, WorldConfig
from simic.contracts.splits import Split
from simic.contracts.state import HardwareContext, HostGraph, LayerKind, LayerNode, SeedState, SystemState
from simic.hosts.host_sets import identify
from simic.ingestion.ingest import ingest
from simic.runtime.home import Home
from simic.runtime.settings import load_profile
from simic.validation.episodes import TrialJob, run_episodes, step_flags

HOSTS = identify("benchmark", range(8))
WORLD = WorldConfig(horizon=8, workers=1)
MANY = FlagConfig.model_construct(hacking_ratio=0.01, ransom_contribution=0.001, ransom_loss=-0.2)
"""Thresholds, which no configuration may have, by which many steps are flagged."""


def after(accuracy: float, *contributions: float | None, stage: SeedStage = SeedStage.HOLDING) -> SystemState:
    """A host at that accuracy, with a seed per contribution."""
    slots = [
        SeedState(stage=stage, blueprint=BLUEPRINTS[0], alpha=1.0, stage_epochs=1, parameters=1, contribution=own)
        for own in contributions
    ]
    return SystemState(
        epoch=3, horizon=20, seeds_alive=len(slots), seeds_max=2, seed_parameters=1, train_loss=1.0, train_accuracy=0.5,
        validation_loss=1.0, validation_accuracy=accuracy, train_loss_history=[1.0], validation_loss_history=[1.0],
        validation_accuracy_history=[accuracy], slots=slots,
        graph=HostGraph(
            layers=[LayerNode(kind=LayerKind.STEM, width=4, is_linear=True)], connects=[],
            monitors=[(row, 0) for row in range(len(slots))],
        ),
        hardware=HardwareContext(device="cpu", threads=1),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (after(0.505, 0.06), [True, True, False]),
        (after(0.52, 0.06), [True, False, False]),
        (after(0.5, 0.06), [True, False, False]),
        (after(0.505, None, 0.06), [True, True, False]),
        (after(0.25, 0.11), [True, False, True]),
        (after(0.25, 0.09), [True, False, False]),
        (after(0.35, 0.11), [True, False, False]),
        (after(0.505, None), [False, False, False]),
        (after(0.505), [False, False, False]),
        (after(0.505, 0.06, stage=SeedStage.PRUNED), [False, False, False]),
    ],
)
def test_a_step_is_flagged_by_its_largest_contribution_and_the_change_since_the_start(
    state: SystemState, expected: list[bool]
) -> None:
    others = [after(0.9, 0.5), after(0.9)]
    observations = Observations.from_states([others[0], state, others[1]], BLUEPRINTS)
    assert step_flags(observations, np.full(3, 0.5), FlagConfig())[1].tolist() == expected


def test_h9_trials_count_the_flags_that_curation_writes(tmp_path: Path) -> None:
    home, spec = Home(tmp_path), ControllerSpec(name="blind")
    collect(spec, HOSTS, WORLD, BusSpec(home.spool), seed=7, provenance=PROVENANCE, clock=FixedClock(NOW))
    bus, names = open_bus(BusSpec(home.spool)), frozenset(BLUEPRINTS)
    ingest(bus, home, IngestConfig(), names, provenance=PROVENANCE, clock=FixedClock())
    manifest = curate_all(home, horizon=WORLD.horizon, flags=MANY)
    rows = pq.read_table(Path(manifest.path) / "episodes.parquet").to_pylist()
    told = {row["host_key"]: (row["hacking_steps"], row["ransomware_steps"]) for row in rows}
    found = run_episodes(TrialJob("blind", spec, HOSTS, WORLD, RewardConfig(), seed=7, flags=MANY))
    ours = {host.key: (hacking, ransom) for host, (_, hacking, ransom) in zip(HOSTS, found.flags.tolist(), strict=True)}
    assert told == ours
    assert all(sum(counts) > 0 for counts in zip(*told.values(), strict=True))
    assert (found.flags[:, 0] >= found.flags[:, 1:].max(axis=1)).all()


@pytest.mark.parametrize(
    "tried",
    [
        lambda app: try_controllers(app, ["random"], range(12)),
        lambda app: compare_until_decided(app, ["random", "wait"], Split.TEST).trials,
    ],
    ids=["trials", "comparison in rounds"],
)
def test_cr09_trials_of_a_home_flag_steps_by_its_thresholds(
    tmp_path: Path, tried: Callable[[Container], TrialReport]
) -> None:
    found = []
    for flags in (FlagConfig(), MANY):
        config = load_profile("quick", {"world.horizon": 8, "world.workers": 1, "trial.hosts_per_family": 8})
        config = config.model_copy(update={"curate": config.curate.model_copy(update={"flags": flags})})
        report = tried(Container(Home(tmp_path), config, 7))
        row = next(one for one in report.controllers if one.controller == "random")
        found.append((row.measured_steps, (row.hacking_steps or 0) + (row.ransomware_steps or 0)))
    (measured, usual), (again, many) = found
    assert measured == again
    assert many > usual
