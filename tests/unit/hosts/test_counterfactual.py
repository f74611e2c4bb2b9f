"""What a seed is worth is measured, never made up, and measuring changes nothing."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders.ensembles import action, ensemble, random_actions, stack, state_digest, step_with, waits

from simic.contracts.actions import Op
from simic.contracts.errors import ConfigError
from simic.contracts.settings.lifecycle import LifecycleConfig
from simic.hosts.blueprint_checks import change_of
from simic.hosts.counterfactual import PLAYERS_MAX, attribute, coalitions, fold_contributions
from simic.hosts.ensemble import Ensemble
from simic.hosts.host_sets import SETS, HostSet
from simic.hosts.interfaces import DataSplit
from simic.hosts.lifecycle import Slots
from simic.hosts.plugins import blueprint_names
from simic.hosts.rollout import controller_uniforms

WEIGHT = LifecycleConfig().contribution_weight


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
    first = crowded._evaluate(DataSplit.VALIDATION, crowded._slots["alpha"])
    second = crowded._evaluate(DataSplit.VALIDATION, crowded._slots["alpha"])
    crowded.observe()
    crowded.masks()
    assert state_digest(crowded) == before
    for ours, theirs in zip(first, second, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_fused_counterfactuals_equal_separate_passes(crowded: Ensemble) -> None:
    alpha = crowded._slots["alpha"]
    fused = crowded._evaluate(DataSplit.VALIDATION, alpha)
    assert (np.isfinite(fused.accuracy_without) == (alpha > 0)).all()
    for host, slot in np.argwhere(alpha > 0).tolist():
        without = alpha.copy()
        without[host, slot] = 0.0
        alone = crowded._evaluate(DataSplit.VALIDATION, without)
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


def test_l11_a_seed_earns_nothing_by_its_hosts_own_progress() -> None:
    grown = ensemble([1])
    before = grown.observe().system["validation_accuracy"][0]
    step_with(grown, action(Op.GERMINATE, blueprint=blueprint_names().index("dropout")))
    step_with(grown, action(Op.ADVANCE))
    slots = grown.observe().slots
    assert (slots["contribution"][0], slots["risk"][0], slots["parameters"][0]) == (0.0, 0.0, 0)
    assert grown.observe().system["validation_accuracy"][0] > before + 0.2, "the host learns all the while"
    assert np.isnan(slots["gradient_norm"][0]), "there is nothing a gradient could move"


@pytest.mark.parametrize("newest", [0.5, 0.2, 1.0])
def test_l16_the_running_average_is_unbiased_from_its_first_value(newest: float) -> None:
    """``world.lifecycle.contribution_weight`` is the weight of the newest value (DRL-11)."""
    slots, live = Slots(1, 2), np.array([True])
    values, expected = [0.08, 0.02, -0.04], []
    for count, value in enumerate(values, start=1):
        fold_contributions(
            slots, np.array([0.5]), np.array([[0.5 - value, np.nan]]), np.array([[0.01, np.nan]]), live, newest
        )
        weights = newest * (1 - newest) ** np.arange(count)[::-1]
        expected.append(float(weights @ values[:count] / weights.sum()))
        assert slots["contribution"][0, 0] == pytest.approx(expected[-1], abs=1e-6)
    assert expected[0] == pytest.approx(0.08)
    assert np.isnan(slots["contribution"][0, 1])
    fold_contributions(slots, np.array([0.5]), np.array([[np.nan, np.nan]]), np.array([[np.nan, np.nan]]), live, newest)
    assert slots["contribution"][0, 0] == pytest.approx(expected[-1], abs=1e-6)
    assert slots["contribution_epochs"].tolist() == [[1, -1]]


def test_measurements_of_finished_hosts_are_ignored() -> None:
    slots = Slots(2, 1)
    fold_contributions(
        slots,
        np.array([0.5, 0.5]),
        np.array([[0.4], [0.4]]),
        np.array([[0.01], [0.01]]),
        np.array([True, False]),
        WEIGHT,
    )
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


def test_the_standard_error_is_that_of_paired_samples(crowded: Ensemble) -> None:
    """Against the textbook: deviation of per-sample differences over the root of their number."""
    alpha = crowded._slots["alpha"]
    measured = crowded._evaluate(DataSplit.VALIDATION, alpha)
    assert (np.isfinite(measured.error_without) == (alpha > 0)).all()
    for host, slot in np.argwhere(alpha > 0).tolist():
        without = alpha.copy()
        without[host, slot] = 0.0
        full, less = (_hits(crowded, one)[host] for one in (alpha, without))
        difference = full.astype(float) - less
        assert difference.mean() == pytest.approx(measured.accuracy[host] - measured.accuracy_without[host, slot])
        expected = np.sqrt(((difference - difference.mean()) ** 2).mean() / len(difference))
        assert measured.error_without[host, slot] == pytest.approx(expected, abs=1e-9)


def _hits(grown: Ensemble, alpha: np.ndarray) -> np.ndarray:
    """Which validation samples each host gets right, [N, samples], from a pass of its own."""
    hosts, data = stack(grown), stack(grown).dataset.validation
    parts, x = hosts.weights.parts, hosts.trunk.stem(hosts.weights.parts, data.inputs)
    for slot in range(3):
        if slot:
            x = hosts.trunk.block(slot - 1, parts, x)
            gain = data.gains[slot - 1]
            x = x if gain is None else x * gain
        for host in np.flatnonzero(alpha[:, slot] > 0).tolist():
            blueprint = hosts.blueprints[int(grown._slots["blueprint"][host, slot])]
            size = blueprint.parameters(hosts.topology.sites[slot])
            h = x[host : host + 1]
            delta = blueprint.delta(hosts.seeds.parameters[host : host + 1, slot, :size], h, None)
            x[host] += float(alpha[host, slot]) * change_of(blueprint.operator, h, delta)[0]
    chosen = hosts.trunk.logits(parts, x).argmax(dim=1)
    return (chosen == data.labels)[:, : data.valid].numpy()


def test_the_error_of_the_average_is_the_average_of_the_errors() -> None:
    """Epochs share their samples, so nothing is gained by measuring one of them twice."""
    slots, live = Slots(1, 1), np.array([True])
    for error in (0.02, 0.01):
        fold_contributions(slots, np.array([0.5]), np.array([[0.4]]), np.array([[error]]), live, WEIGHT)
    weights = np.array([WEIGHT * (1 - WEIGHT), WEIGHT])
    assert slots["contribution_error"][0, 0] == pytest.approx(weights @ [0.02, 0.01] / weights.sum(), abs=1e-6)


def test_l12_shapley_values_are_exact_and_nothing_is_made_up(crowded: Ensemble) -> None:
    """Every coalition is measured; values are means over all orders of arrival and add up to the whole gain."""
    before = state_digest(crowded)
    found, alpha = crowded.attribute(), crowded._slots["alpha"]
    assert state_digest(crowded) == before
    total = np.nansum(found.shapley, axis=1)
    np.testing.assert_allclose(total, found.everything - found.nothing, atol=1e-9)
    assert (np.isfinite(found.shapley) == (alpha > 0)).all()
    measured = crowded._evaluate(DataSplit.VALIDATION, alpha)
    np.testing.assert_allclose(found.leave_one_out, measured.accuracy[:, None] - measured.accuracy_without, atol=1e-12)
    for host in np.flatnonzero((alpha > 0).sum(axis=1) >= 2).tolist():
        for slot in np.flatnonzero(alpha[host] > 0).tolist():
            gains = []
            for order in permutations(range(3)):
                on, off = (np.isin(np.arange(3), order[: order.index(slot) + extra]) for extra in (1, 0))
                worth = [_accuracy(crowded, np.where(mask, alpha, np.float32(0)))[host] for mask in (on, off)]
                gains.append(worth[0] - worth[1])
            assert found.shapley[host, slot] == pytest.approx(np.mean(gains), abs=1e-9)
        break


def _accuracy(grown: Ensemble, alpha: np.ndarray) -> np.ndarray:
    return grown._evaluate(DataSplit.VALIDATION, alpha, leave_one_out=False).accuracy


def test_pairs_say_what_two_seeds_gain_only_together(crowded: Ensemble) -> None:
    found, alpha = crowded.attribute(), crowded._slots["alpha"]
    host = int(np.flatnonzero((alpha > 0).sum(axis=1) >= 2)[0])
    first, second = np.flatnonzero(alpha[host] > 0)[:2].tolist()

    def worth(*slots: int) -> float:
        return float(_accuracy(crowded, np.where(np.isin(np.arange(3), slots), alpha, np.float32(0)))[host])

    expected = worth(first, second) - worth(first) - worth(second) + worth()
    assert found.pairs[host, first, second] == found.pairs[host, second, first] == pytest.approx(expected, abs=1e-9)
    assert np.isnan(found.pairs[host].diagonal()).all()


def test_more_seeds_than_can_be_attributed_exactly_are_refused() -> None:
    assert len(coalitions(PLAYERS_MAX)) == 16
    with pytest.raises(ConfigError, match="at most 4"):
        coalitions(PLAYERS_MAX + 1)


def test_hosts_with_one_seed_each_need_two_passes_wherever_the_seeds_are() -> None:
    place = np.array([[0, -1, -1, -1, -1], [-1, -1, -1, -1, 0], [-1] * 5])
    found = attribute({(): np.array([0.2, 0.3, 0.4]), (0,): np.array([0.5, 0.2, 0.4])}, place)
    assert found.shapley[0, 0] == pytest.approx(0.3)
    assert found.shapley[1, 4] == found.leave_one_out[1, 4] == pytest.approx(-0.1)
    assert np.isfinite(found.shapley).sum() == 2
    assert np.isnan(found.pairs).all()


@given(st.lists(st.floats(-1, 1), min_size=16, max_size=16))
def test_efficiency_and_symmetry_hold_for_any_game(values: list[float]) -> None:
    worth = {chosen: np.array([value]) for chosen, value in zip(coalitions(4), values, strict=True)}
    found = attribute(worth, np.arange(4)[None])
    assert abs(found.shapley.sum() - (worth[0, 1, 2, 3] - worth[()])[0]) <= 1e-9
    swapped = {tuple(sorted({0: 1, 1: 0}.get(one, one) for one in chosen)): value for chosen, value in worth.items()}
    other = attribute(swapped, np.arange(4)[None])
    np.testing.assert_allclose(other.shapley[0, [1, 0, 2, 3]], found.shapley[0], atol=1e-12)
