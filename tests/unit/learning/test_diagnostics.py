"""Metrics of an update against their definitions."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from support.builders.reports import BLUEPRINTS, episode
from support.builders.snapshots import write_snapshot

from simic.contracts.actions import HEADS, Op
from simic.contracts.batches import OP_INDEX
from simic.learning.diagnostics import (
    batch_metrics,
    behaviour_divergence,
    divergence_by_head,
    entropy_by_head,
    ratio_shares,
)
from simic.learning.losses import advantage_metrics
from simic.replay.dataset import GraphDataset

PARTS = [f"kl_{head.value}" for head in HEADS]


def floats(found: dict[str, torch.Tensor]) -> dict[str, float]:
    return {name: float(value) for name, value in found.items()}


def test_m12_moments_of_the_advantages_are_those_of_scipy() -> None:
    """M12; padding does not count, and the fourth moment is the excess over a normal distribution's."""
    draws = torch.from_numpy(np.random.default_rng(0).gamma(2.0, 3.0, size=(40, 5))).float()
    valid = torch.rand(draws.shape, generator=torch.Generator().manual_seed(1)) < 0.7
    own = draws[valid].double().numpy()
    assert floats(advantage_metrics(draws[valid])) == pytest.approx(
        {
            "advantage_mean": own.mean(),
            "advantage_sd": own.std(),
            "advantage_skew": stats.skew(own),
            "advantage_kurtosis": stats.kurtosis(own),
        },
        rel=1e-4,
    )


def test_m12_advantages_that_do_not_vary_have_moments_of_zero_and_none_that_is_not_finite() -> None:
    found = floats(advantage_metrics(torch.full((6,), 7.0)))
    assert found == {"advantage_mean": 7.0, "advantage_sd": 0.0, "advantage_skew": 0.0, "advantage_kurtosis": 0.0}


def test_m20_the_joint_kl_is_the_sum_over_heads_as_for_two_independent_categoricals() -> None:
    """M20: KL of the product equals the sum of the KLs, here computed over all pairs of outcomes."""
    p, q = ([0.2, 0.8], [0.5, 0.3, 0.2]), ([0.6, 0.4], [0.1, 0.1, 0.8])
    joint = sum(
        a * b * math.log(a * b / (c * d))
        for a, c in zip(p[0], q[0], strict=True)
        for b, d in zip(p[1], q[1], strict=True)
    )
    each = torch.zeros(1, len(HEADS))
    for head in (0, 1):
        each[0, head] = sum(a * math.log(a / b) for a, b in zip(p[head], q[head], strict=True))
    found = floats(divergence_by_head("kl", each))
    assert found["kl"] == pytest.approx(joint, rel=1e-6)
    assert found["kl"] == pytest.approx(sum(found[name] for name in PARTS), rel=1e-6)


def test_m20_h6_a_duplicate_of_an_inactive_head_changes_no_divergence() -> None:
    """Each part is a mean over all steps, so a head that never mattered adds 0, however many there are of it."""
    each = torch.rand(9, len(HEADS), generator=torch.Generator().manual_seed(0))
    each[:, 2:] = 0.0
    found = floats(divergence_by_head("kl", each))
    assert found["kl"] == pytest.approx(float(each[:, :2].sum(1).mean()), rel=1e-6)
    assert [found[name] for name in PARTS[2:]] == [0.0] * (len(HEADS) - 2)


def test_m20_the_estimate_from_samples_of_the_behaviour_has_the_kl_as_its_mean() -> None:
    """With every action as often as the behaviour takes it, the estimate is KL(behaviour || policy) exactly."""
    behaviour, policy = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.25, 0.5])
    actions = torch.tensor([0, 0, 1, 2])
    own, logged = torch.zeros(4, len(HEADS)), torch.zeros(4, len(HEADS))
    own[:, 3], logged[:, 3] = policy[actions].log(), behaviour[actions].log()
    batch: Any = SimpleNamespace(log_prob_heads=logged)
    found = floats(behaviour_divergence(own, batch))
    expected = float((behaviour * (behaviour / policy).log()).sum())
    assert found["behaviour_kl"] == pytest.approx(expected, rel=1e-5)
    assert found[f"behaviour_kl_{HEADS[3].value}"] == pytest.approx(expected, rel=1e-5)


def test_m21_the_share_of_ratios_beyond_each_bound_is_reported() -> None:
    """Ratios 0.5, 1, 3 and one in the padding; a ratio at its bound is not beyond it, and all are beyond 0."""
    log_ratios = torch.tensor([[0.5, 1.0], [3.0, 9.0]]).log()
    valid = torch.tensor([[True, True], [True, False]])
    found = floats(ratio_shares(log_ratios[valid], {"rho_bar": 1.0, "c_bar": 4.0, "pg_rho_bar": 0.0}))
    assert found == pytest.approx({"rho_bar_share": 1 / 3, "c_bar_share": 0.0, "pg_rho_bar_share": 1.0})


def test_entropies_by_head_leave_out_the_steps_that_do_not_use_the_head() -> None:
    actions = torch.full((2, len(HEADS)), -1)
    actions[:, 0] = torch.tensor([OP_INDEX[Op.WAIT], OP_INDEX[Op.FOSSILIZE]])
    actions[1, 1] = 0
    entropies = torch.tensor([[1.0, 5.0], [3.0, 0.5]])
    padded = torch.cat([entropies, torch.zeros(2, len(HEADS) - 2)], dim=1)
    found = floats(entropy_by_head(padded, actions))
    assert (found["entropy_op"], found["entropy_slot"], found["entropy_tempo"]) == (2.0, 0.5, 0.0)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphDataset:
    path: Path = tmp_path_factory.mktemp("snapshot") / "s"
    write_snapshot(path, [report for key in range(4) for report in episode(key)], split="train")
    return GraphDataset.load(path, blueprints=BLUEPRINTS)


def test_m12_forced_actions_are_those_where_only_waiting_is_legal(store: GraphDataset) -> None:
    batch = store.batch(np.arange(4))
    steps = len(batch.actions)
    batch.masks.op[:] = False
    batch.masks.op[:, OP_INDEX[Op.WAIT]] = True
    batch.masks.op[:3, OP_INDEX[Op.PRUNE]] = True
    found = floats(batch_metrics(batch))
    assert found == pytest.approx({"step_count": steps, "forced_share": (steps - 3) / steps})


def test_the_lag_is_the_mean_over_the_episodes_of_policies_and_absent_without_one(store: GraphDataset) -> None:
    lags = np.array([2.0, np.nan, 5.0, np.nan])
    aged = GraphDataset(store.sequences, store.steps, store.masks, store.table, store.blueprints, lags=lags)
    assert float(batch_metrics(aged.batch(np.array([0, 1, 2])))["policy_lag"]) == 3.5
    assert "policy_lag" not in batch_metrics(aged.batch(np.array([1, 3])))
    assert "policy_lag" not in batch_metrics(store.batch(np.arange(4)))
