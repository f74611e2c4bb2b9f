"""Costs in relation to the host, against numbers computed by hand."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from simic.contracts.controllers import ControllerSpec, Plan, PlannedSeed
from simic.contracts.rewards import RewardConfig
from simic.contracts.settings.run import WorldConfig
from simic.hosts.host_sets import identify
from simic.validation.compute import compute_shares
from simic.validation.episodes import Effort, Episodes, TrialJob, run_episodes
from simic.validation.host_sizes import HostSizes

SIZES = HostSizes(*(np.array(one) for one in ([1000, 500], [100, 100], [50, 50], [10, 10])))


def test_every_cost_is_a_share_of_the_training_of_the_host() -> None:
    """Host 0 grew one episode, host 1 three; 20 epochs of 100 samples take 3 x 100 x 20 = 6000 passes of a sample."""
    effort = np.array([[1, 4000, 20, 60_000, 6, 2], [3, 0, 40, 0, 0, 4]])
    episodes = Episodes(**{**{field.name: np.zeros(2) for field in fields(Episodes)}, "effort": effort})
    found = compute_shares(episodes, SIZES, 20)
    assert found["extra_compute"].tolist() == [0.2, 2.0], "two more trainings of host 1"
    assert found["decisions"].tolist() == [20.0, 40.0]
    assert found["decision_multiply_adds"].tolist() == [3000.0, 0.0]
    assert found["controller_compute"].tolist() == pytest.approx([60_000 / (6000 * 1000), 0.0])
    assert found["probe_compute"].tolist() == pytest.approx([(6 * 50 + 3 * 2 * 10) / 6000, 3 * 4 * 10 / 6000])


def test_episodes_count_decisions_contributions_and_probes_of_their_own_host() -> None:
    """The seed is probed as it germinates and contributes from its blending on; never growing needs neither."""
    hosts, world = identify("benchmark", [4, 9]), WorldConfig(horizon=8, workers=1)
    plan = Plan(seeds=[PlannedSeed(epoch=1, slot=1, blueprint="norm")])
    grows, waits = (
        Effort(*run_episodes(TrialJob("x", spec, hosts, world, RewardConfig(), 0)).effort.T)
        for spec in (ControllerSpec(name="schedule", plan=plan), ControllerSpec(name="wait"))
    )
    assert grows.decisions.tolist() == waits.decisions.tolist() == [8, 8]
    assert (grows.probes.tolist(), waits.probes.tolist(), waits.left_out.tolist()) == ([1, 1], [0, 0], [0, 0])
    assert all(0 < count < 7 for count in grows.left_out.tolist())
    assert grows.products.tolist() == [0, 0], "a schedule has no layers"
