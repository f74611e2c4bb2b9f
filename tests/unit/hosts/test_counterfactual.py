"""What a seed is worth is measured, never made up, and measuring changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.grown import action, ensemble, random_actions, state_digest, step_with, waits

from simic.contracts.actions import Op
from simic.hosts.counterfactual import SMOOTHING, fold_contributions
from simic.hosts.ensemble import Ensemble
from simic.hosts.keys import SETS, HostSet
from simic.hosts.lifecycle import Slots
from simic.hosts.protocols import Part
from simic.hosts.rollout import controller_uniforms


@pytest.fixture(scope="module")
def crowded() -> Ensemble:
    """Ten hosts with up to three seeds each, in the middle of an episode."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SETS, "crowded", HostSet(SETS["benchmark"].families, seeds_max=3))
        grown = ensemble(range(10), world_set="crowded")
    keys = np.arange(10)
    for epoch in range(9):
        grown.step(random_actions(grown.masks(), controller_uniforms(keys, 3, epoch), patience=0.1))
    assert ((grown._slots["alpha"] > 0).sum(axis=1) > 1).any(), "some hosts must feel several seeds"
    return grown


def test_drl_10_evaluation_is_pure(crowded: Ensemble) -> None:
    before = state_digest(crowded)
    first = crowded._evaluate(Part.VALIDATION, crowded._slots["alpha"])
    second = crowded._evaluate(Part.VALIDATION, crowded._slots["alpha"])
    crowded.observe()
    crowded.masks()
    assert state_digest(crowded) == before
    for ours, theirs in zip(first, second, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_fused_counterfactuals_equal_separate_passes(crowded: Ensemble) -> None:
    alpha = crowded._slots["alpha"]
    fused = crowded._evaluate(Part.VALIDATION, alpha)
    assert (np.isfinite(fused.accuracy_without) == (alpha > 0)).all()
    for host, slot in np.argwhere(alpha > 0).tolist():
        without = alpha.copy()
        without[host, slot] = 0.0
        alone = crowded._evaluate(Part.VALIDATION, without)
        assert fused.accuracy_without[host, slot] == alone.accuracy[host]


def test_m18_what_is_not_measured_is_absent_and_not_zero() -> None:
    grown = ensemble([1, 2])
    step_with(grown, action(Op.GERMINATE, tempo=1))
    for _ in range(2):
        slots = grown.observe().slots
        assert np.isnan(slots["contribution"]).all()
        assert np.isnan(slots["contribution_epochs"]).all()
        assert np.isnan(slots["risk"]).all()
        step_with(grown)
    step_with(grown, action(Op.ADVANCE))
    slots = grown.observe().slots
    assert np.isfinite(slots["contribution"]).tolist() == [True] + [False] * 5
    assert slots["contribution_epochs"][0] == 0
    assert 0 < slots["risk"][0] <= 1


def test_a_dropout_seed_is_measured_as_worth_exactly_nothing() -> None:
    grown = ensemble([1])
    step_with(grown, action(Op.GERMINATE, blueprint=2))
    step_with(grown, action(Op.ADVANCE))
    slots = grown.observe().slots
    assert (slots["contribution"][0], slots["risk"][0], slots["parameters"][0]) == (0.0, 0.0, 0)
    assert np.isnan(slots["gradient_norm"][0]), "there is nothing a gradient could move"


def test_l16_the_running_average_is_unbiased_from_its_first_value() -> None:
    slots, live = Slots(1, 2), np.array([True])
    values, expected = [0.08, 0.02, -0.04], []
    for count, value in enumerate(values, start=1):
        fold_contributions(slots, np.array([0.5]), np.array([[0.5 - value, np.nan]]), live)
        weights = SMOOTHING * (1 - SMOOTHING) ** np.arange(count)[::-1]
        expected.append(float(weights @ values[:count] / weights.sum()))
        assert slots["contribution"][0, 0] == pytest.approx(expected[-1], abs=1e-6)
    assert expected[0] == pytest.approx(0.08)
    assert np.isnan(slots["contribution"][0, 1])
    fold_contributions(slots, np.array([0.5]), np.array([[np.nan, np.nan]]), live)
    assert slots["contribution"][0, 0] == pytest.approx(expected[-1], abs=1e-6)
    assert slots["contribution_epochs"].tolist() == [[1, -1]]


def test_measurements_of_finished_hosts_are_ignored() -> None:
    slots = Slots(2, 1)
    fold_contributions(slots, np.array([0.5, 0.5]), np.array([[0.4], [0.4]]), np.array([True, False]))
    assert np.isfinite(slots["contribution"][:, 0]).tolist() == [True, False]


def test_hosts_without_an_active_seed_cost_no_extra_rows() -> None:
    grown = ensemble(range(4))
    step_with(grown, action(Op.GERMINATE))
    step_with(grown, action(Op.ADVANCE))
    seen: list[int] = []
    original = grown._evaluate

    def spy(*arguments: Any, **options: Any) -> Any:
        measured = original(*arguments, **options)
        seen.append(int(np.isfinite(measured.accuracy_without).sum()))
        return measured

    grown._evaluate = spy  # type: ignore[method-assign]
    grown.step(waits(4))
    assert seen == [1]
