"""Episodes of hopeless hosts end early: cut off, counted, and without an effect on any other episode."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.homes.pipeline import NOW, PROVENANCE, FixedClock, curate_all

from simic.bus.factory import BusSpec, open_bus
from simic.bus.spool.bus import SpoolBus
from simic.collection.branching import BranchChoice
from simic.collection.collect import collect
from simic.collection.early_stop import BELOW_ITS_BEST
from simic.contracts.consistency import find_contradiction
from simic.contracts.controllers import ControllerSpec
from simic.contracts.errors import ConfigError
from simic.contracts.field_report import FieldReport
from simic.contracts.names import FIELD_REPORTS
from simic.contracts.results.receipts import CollectionReceipt
from simic.contracts.settings.run import EpisodeStopConfig, IngestConfig, WorldConfig
from simic.contracts.state import HostIdentity
from simic.hosts.host_sets import identify
from simic.hosts.plugins import blueprint_names
from simic.ingestion.ingest import ingest
from simic.replay.dataset import GraphDataset
from simic.runtime.home import Home
from simic.runtime.settings import load_profile

HORIZON = 10
HOSTS = identify("benchmark", range(12))
STOP = EpisodeStopConfig(fall=0.04, epochs=2)
IDS = {"report_id", "run_id", "command_id", "seed_id", "issued_at"}


def grow(root: Path, chunk: int = 12, hosts: tuple[HostIdentity, ...] = HOSTS, **given: Any) -> CollectionReceipt:
    return collect(
        ControllerSpec(name="random"), hosts, WorldConfig(horizon=HORIZON, chunk=chunk, workers=1), BusSpec(root),
        seed=5, provenance=PROVENANCE, clock=FixedClock(NOW), **given,
    )  # fmt: skip


def episodes(root: Path) -> dict[int, list[FieldReport]]:
    found = defaultdict(list)
    for delivery in SpoolBus(root).claim(FIELD_REPORTS):
        for line in delivery.open(1 << 20):
            report = FieldReport.model_validate_json(line.data)
            found[report.host.key].append(report)
    return found


def cut_after(episode: list[FieldReport]) -> int | None:
    """The step after which a whole episode has been hopeless for long enough, by the definition."""
    assert STOP.fall is not None
    accuracies = np.float32([episode[0].metrics.validation_accuracy_before])
    below = 0
    for report, later in pairwise(episode):
        accuracies = np.append(accuracies, np.float32(later.state.validation_accuracy))
        below = below + 1 if accuracies[:-1].max() - accuracies[-1] >= np.float32(STOP.fall) else 0
        if below == STOP.epochs:
            return report.step
    return None


def test_low_hopeless_episodes_are_cut_off_and_nothing_else_changes(tmp_path: Path) -> None:
    before, after = grow(tmp_path / "whole"), grow(tmp_path / "cut", stop=STOP)
    whole, cut = episodes(tmp_path / "whole"), episodes(tmp_path / "cut")
    expected = {key: cut_after(reports) for key, reports in whole.items()}
    stopped = {key for key, step in expected.items() if step is not None}
    assert 0 < len(stopped) < len(HOSTS), "the case needs both"
    for key, reports in cut.items():
        last = expected[key]
        kept = whole[key] if last is None else whole[key][: last + 1]
        same = [one.model_dump(exclude=IDS | {"truncated", "final_state"}) for one in reports]
        assert same == [one.model_dump(exclude=IDS | {"truncated", "final_state"}) for one in kept]
        assert [one.truncated for one in reports] == [False] * (len(reports) - 1) + [last is not None]
        assert reports[-1].terminated is (last is None)
        final = reports[-1].final_state
        assert final is not None
        assert (final.committed_validation_accuracy is None) is (last is not None), "what it keeps was not measured"
        assert (reports[-1].metrics.test_accuracy is None) is (last is not None)
        assert not [one for one in map(find_contradiction, reports) if one is not None]
    assert {one.run_id for reports in whole.values() for one in reports}.isdisjoint(
        one.run_id for reports in cut.values() for one in reports
    ), "an episode that may end early is another one"
    assert (before.stopped, before.epochs_left_out) == ({}, 0)
    assert after.stopped == {BELOW_ITS_BEST: len(stopped)}
    left_out = HORIZON * len(HOSTS) - after.reports
    assert after.epochs_left_out == left_out > 0
    assert after.governor_events == before.governor_events == 0


def test_a_mean_return_is_one_of_episodes_with_an_end(tmp_path: Path) -> None:
    grow(tmp_path / "whole")
    whole = episodes(tmp_path / "whole")
    points = [
        sum(
            100.0 * (one.metrics.validation_accuracy_after - one.metrics.validation_accuracy_before)
            - 3.0 * one.metrics.rent_parameters / 1640 / HORIZON
            for one in reports
        )
        for reports in whole.values()
        if cut_after(reports) is None
    ]
    assert grow(tmp_path / "cut", stop=STOP).mean_return == pytest.approx(np.mean(points), abs=1e-5)
    fallen = tuple(host for host in HOSTS if cut_after(whole[host.key]) is not None)
    hopeless = grow(tmp_path / "none", hosts=fallen, stop=STOP)
    assert hopeless.stopped == {BELOW_ITS_BEST: hopeless.episodes}
    assert (hopeless.mean_return, hopeless.test_accuracy) == (None, None)


def test_low_who_is_cut_off_does_not_depend_on_the_other_hosts(tmp_path: Path) -> None:
    digests = {chunk: grow(tmp_path / str(chunk), chunk, stop=STOP).reports_digest for chunk in (1, 5, 12)}
    assert len(set(digests.values())) == 1


def test_low_parents_and_branches_run_to_their_horizon(tmp_path: Path) -> None:
    """Their returns are compared."""
    choice = BranchChoice(1, 2, 0)
    ours, theirs = (grow(tmp_path / name, choice=choice, **given) for name, given in (("a", {"stop": STOP}), ("b", {})))
    assert ours.stopped == {}
    assert ours.reports_digest == theirs.reports_digest


def test_low_a_cut_episode_is_learned_from_and_has_no_end(tmp_path: Path) -> None:
    home = Home(tmp_path)
    receipt = grow(home.spool, stop=STOP)
    bus, names = open_bus(BusSpec(home.spool)), frozenset(blueprint_names())
    landed = ingest(bus, home, IngestConfig(), names, provenance=PROVENANCE, clock=FixedClock())
    assert (landed.landed, landed.quarantined) == (receipt.reports, 0)
    manifest = curate_all(home, horizon=HORIZON)
    assert manifest.rows_out == receipt.reports, "every row is kept"
    rows = pq.read_table(Path(manifest.path) / "episodes.parquet").to_pylist()
    assert sum(row["truncated"] for row in rows) == sum(receipt.stopped.values())
    assert all(row["truncated"] != row["terminated"] for row in rows)
    store = GraphDataset.load(Path(manifest.path), blueprints=blueprint_names())
    cut_off = {row["run_id"] for row in rows if row["truncated"]}
    assert (~store.has_end).tolist() == [run in cut_off for run in store.sequences.run_ids]
    assert 0 < store.has_end.sum() < len(store)


@pytest.mark.parametrize("family", ["sparse", "minimal"])
def test_a_reward_that_is_paid_at_the_end_needs_episodes_with_an_end(family: str) -> None:
    overrides = {"collect.stop.fall": 0.2, "curate.reward.family": family}
    with pytest.raises(ConfigError, match=r"collect\.stop\.fall = 0\.2 cuts episodes off.*use basic or shaped"):
        load_profile("default", overrides)
    assert load_profile("default", overrides | {"collect.stop.fall": None}).collect.stop.fall is None
    assert load_profile("default", overrides | {"curate.reward.family": "basic"}).collect.stop.epochs == 3


@pytest.mark.parametrize(("name", "value"), [("fall", 0.0), ("fall", 1.5), ("fall", float("nan")), ("epochs", 0)])
def test_a_criterion_that_makes_no_sense_is_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"collect\.stop\.{name}"):
        load_profile("default", {f"collect.stop.{name}": value})
