"""The choice among policies of several training seeds: its hosts, its figures, its ties."""

from __future__ import annotations

import statistics
from datetime import UTC, datetime

import pytest
from support.builders.validation_reports import trials_of

from simic.contracts.errors import ContractError
from simic.contracts.results.receipts import Provenance, TrainingReport
from simic.contracts.results.trials import SeedChoice, StoppedSeed
from simic.contracts.settings.run import RunConfig, TrialConfig, WorldConfig
from simic.contracts.settings.safety import StopCause, TrainingStop
from simic.contracts.splits import Split, split_of
from simic.hosts.host_sets import host_set
from simic.registry.headline import seed_metrics
from simic.validation.table import render_seeds, render_spread
from simic.validation.training_seeds import choose, row_of, validation_hosts

BEGUN, DONE = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
RUN = Provenance("0.1.0+0", "c" * 64, 3)


def _trained(seed: int, snapshot: str = "5" * 64) -> TrainingReport:
    return TrainingReport(
        code_version="0.1.0+0", config_digest="c" * 64, seed=seed, started_at=BEGUN, finished_at=DONE,
        digest=f"{seed:x}" * 64, path="p", snapshot_digest=snapshot, start_digest=None, updates=1, episodes=1,
        passes=1.0, metrics={}, curves_path="c",
    )  # fmt: skip


def _choice(*means: float) -> SeedChoice:
    trained = [_trained(3 + at) for at in range(len(means))]
    rows = {"wait": 50.0, **{row_of(one): mean for one, mean in zip(trained, means, strict=True)}}
    return choose(trained, trials_of(rows, RunConfig(), RUN, 20), "trials/x.json", BEGUN, RUN)


def test_the_greatest_mean_difference_is_chosen_and_the_spread_is_that_of_the_seeds() -> None:
    found, gains = _choice(52.0, 55.5, 53.0), (2.0, 5.5, 3.0)
    assert (found.training_seed, found.policy_digest) == (4, "4" * 64)
    assert [one.over_wait.mean for one in found.seeds] == pytest.approx(gains)
    expected = (statistics.mean(gains), statistics.stdev(gains), 2.0, 5.5)
    assert (found.mean, found.spread, found.least, found.greatest) == pytest.approx(expected)
    assert (found.seed, found.hosts, found.trials) == (3, 20, "trials/x.json")


def test_a_tie_goes_to_the_first_seed() -> None:
    assert _choice(52.0, 54.0, 54.0).training_seed == 4
    assert _choice(54.0, 54.0).training_seed == 3


def test_low_a_hopeless_training_is_counted_and_never_chosen() -> None:
    """Not even if its policy is in the trials and looks best there."""
    trained = [_trained(3), _trained(4), _trained(5)]
    stop = TrainingStop(
        cause=StopCause.COLLAPSED, phase="vtrace", updates=9, planned_updates=90, detail="it has collapsed"
    )
    trained[1] = trained[1].model_copy(update={"stopped": stop})
    rows = {"wait": 50.0, **{row_of(one): mean for one, mean in zip(trained, (52.0, 99.0, 53.0), strict=True)}}
    report = trials_of(rows, RunConfig(), RUN, 20)
    found = choose(trained, report, "x", BEGUN, RUN)
    assert (found.training_seed, [one.training_seed for one in found.seeds]) == (5, [3, 5])
    assert found.stopped == [StoppedSeed(training_seed=4, policy_digest="4" * 64, cause=StopCause.COLLAPSED)]
    assert found.policies == {"3" * 64, "4" * 64, "5" * 64}
    alone = choose(trained[:2], report, "x", BEGUN, RUN)
    assert (alone.training_seed, alone.spread, alone.mean) == (3, None, 2.0)
    assert "1 training seed, 1 more ended early as hopeless on benchmark" in render_spread(alone)
    assert render_seeds(alone).rows[-1][0] == "4 (hopeless: collapsed)"
    assert seed_metrics(alone) == {
        "training_seeds_mean": 2.0, "training_seeds_least": 2.0, "training_seeds_greatest": 2.0,
        "training_seeds_stopped": 1.0,
    }  # fmt: skip
    with pytest.raises(ContractError, match="expected a training that finished, found none"):
        choose(trained[1:2], report, "x", BEGUN, RUN)


def test_trainings_on_several_snapshots_are_no_choice() -> None:
    trained = [_trained(3), _trained(4, "6" * 64)]
    report = trials_of({"wait": 50.0, **{row_of(one): 51.0 for one in trained}}, RunConfig(), RUN, 20)
    with pytest.raises(ContractError, match="expected trainings on one snapshot"):
        choose(trained, report, "x", BEGUN, RUN)


def test_a_policy_without_a_trial_is_refused() -> None:
    report = trials_of({"wait": 50.0, row_of(_trained(3)): 51.0}, RunConfig(), RUN, 20)
    with pytest.raises(ContractError, match="lack seed 4"):
        choose([_trained(3), _trained(4)], report, "x", BEGUN, RUN)


def test_the_hosts_are_of_the_validation_split_balanced_and_others_for_another_snapshot() -> None:
    world, config = WorldConfig(), TrialConfig(hosts_per_family=5)
    hosts = validation_hosts("5" * 64, world, config)
    assert {split_of(host.set, host.key) for host in hosts} == {Split.VALIDATION}
    families = [host.family for host in hosts]
    assert {families.count(name) for name in host_set(world.set).families} == {5}
    assert hosts == validation_hosts("5" * 64, world, config)
    assert not {host.key for host in hosts} & {host.key for host in validation_hosts("6" * 64, world, config)}
