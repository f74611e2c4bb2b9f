"""Prioritised draws of whole sequences: the paper's numbers, its distribution, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats

from simic.contracts.errors import ContractError
from simic.replay.live.prioritised import (
    Prioritisation,
    PrioritisedSampler,
    importance_weights,
    sequence_magnitudes,
)


def sampler(priorities: list[float], seed: int = 0, **settings: float) -> PrioritisedSampler:
    """Priorities as they end up: eps is taken off before they are told."""
    chosen = Prioritisation(**settings)
    made = PrioritisedSampler(len(priorities), seed=seed, settings=chosen)
    made.add(np.arange(len(priorities)))
    made.update(np.arange(len(priorities)), np.array(priorities) - chosen.eps)
    return made


def test_the_worked_example() -> None:
    """p = 1 2 3 4, alpha .6, beta .4: alpha is applied once, and the least likely row weighs 1."""
    made = sampler([1.0, 2.0, 3.0, 4.0])
    np.testing.assert_allclose(made.probabilities(), [0.148230, 0.224674, 0.286555, 0.340542], atol=1e-6)
    weights = importance_weights(made.probabilities(), 4, 0.4)
    np.testing.assert_allclose(weights, [1.0, 0.846745, 0.768229, 0.716978], atol=1e-6)


def test_a_uniform_draw_takes_each_present_row_alike_and_weighs_all_alike() -> None:
    """Chi-square; the absent row is never drawn, and nothing to draw is still an error."""
    made = sampler([1.0, 100.0, 1.0, 1e4, 1.0])
    made.remove(np.array([2]))
    draw = made.draw(40_000, is_uniform=True)
    found = np.bincount(draw.rows, minlength=5)
    assert found[2] == 0
    assert stats.chisquare(found[[0, 1, 3, 4]]).pvalue > 1e-3
    assert (draw.weights == 1.0).all()
    assert made.probabilities()[3] > 0.8, "priorities stay"
    with pytest.raises(ContractError, match="every weight is 0"):
        PrioritisedSampler(4, seed=0).draw(1, is_uniform=True)


def test_draws_follow_the_probabilities() -> None:
    """Chi-square over a million draws in batches, while absent rows lie between the present ones."""
    made = PrioritisedSampler(20_000, seed=3)
    rows = np.arange(0, 20_000, 100)
    made.add(rows)
    made.update(rows, np.random.default_rng(0).exponential(2.0, len(rows)))
    counts = sum(np.bincount(made.draw(10_000).rows, minlength=20_000) for _ in range(100))
    assert not counts[np.setdiff1d(np.arange(20_000), rows)].any()
    expected = 1e6 * made.probabilities()[rows]
    assert stats.chisquare(counts[rows], expected).pvalue > 0.01


def test_weights_of_a_draw_are_the_formulas_and_at_most_one() -> None:
    made = sampler([1.0, 2.0, 3.0, 4.0, 0.5], seed=2)
    rows, weights = made.draw(64)
    literal = (5 * made.probabilities()[rows]) ** -0.4
    np.testing.assert_allclose(weights, literal / literal.max(), rtol=1e-6)
    assert weights.dtype == np.float32 and weights.max() == 1.0 and weights.min() > 0.0


def test_weighted_draws_estimate_the_plain_mean() -> None:
    """With beta 1 the correction is full: the weighted mean over draws is the mean over rows."""
    made = sampler([0.1, 1.0, 4.0, 9.0], seed=5, beta=1.0)
    value = np.array([8.0, -1.0, 3.0, 0.0])
    rows, weights = made.draw(200_000)
    assert np.average(value[rows], weights=weights) == pytest.approx(value.mean(), abs=0.05)
    assert value[rows].mean() != pytest.approx(value.mean(), abs=0.3)


def test_alpha_0_is_uniform_and_beta_rises_on_a_line() -> None:
    assert sampler([1.0, 50.0, 3.0, 0.2], alpha=0.0).probabilities().tolist() == [0.25] * 4
    made = sampler([1.0, 2.0], anneal_draws=4)
    betas = [made.beta for _ in range(7) if len(made.draw(2).rows)]
    np.testing.assert_allclose(betas, [0.55, 0.7, 0.85, 1.0, 1.0, 1.0, 1.0])
    assert sampler([1.0]).beta == 0.4


def test_the_seed_decides_the_draws() -> None:
    draws = [sampler([1.0, 2.0, 3.0, 4.0] * 20, seed=seed).draw(50).rows.tolist() for seed in (4, 4, 5)]
    assert draws[0] == draws[1] != draws[2]


def test_newcomers_enter_at_the_greatest_priority_which_can_be_forgotten() -> None:
    """D23: one outlier must not rule for ever."""
    made = PrioritisedSampler(10, seed=0, settings=Prioritisation(max_decay=0.5, alpha=1.0))
    made.add(np.array([0, 1]))
    assert made.probabilities()[:2].tolist() == [0.5, 0.5] and made.max_priority == 1.0
    made.update(np.array([0]), np.array([99.99]))
    made.add(np.array([7]))
    assert made._tree.get(np.array([7]))[0] == made.max_priority == 100.0
    for _ in range(20):
        made.update(np.array([1]), np.array([0.19]))
    assert made.max_priority == pytest.approx(0.2)
    keeps = PrioritisedSampler(10, seed=0)
    keeps.add(np.array([0]))
    keeps.update(np.array([0]), np.array([99.99]))
    keeps.update(np.array([0]), np.array([0.0]))
    assert keeps.max_priority == 100.0


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1.0])
def test_d23_priorities_that_are_none_are_refused_whole(wrong: float) -> None:
    made = sampler([1.0, 2.0, 3.0])
    before = made.get_state()
    with pytest.raises(ContractError, match="NaN, negative or beyond"):
        made.update(np.array([0, 1]), np.array([5.0, wrong]))
    assert json.dumps(before, default=list) == json.dumps(made.get_state(), default=list)


def test_d23_all_zero_magnitudes_are_uniform_and_never_nan() -> None:
    """eps keeps every present row drawable; nothing present is an error, not NaN."""
    made = sampler([0.01, 0.01, 0.01])
    rows, weights = made.draw(30)
    assert set(rows.tolist()) == {0, 1, 2} and weights.tolist() == [1.0] * 30
    made.remove(np.arange(3))
    assert len(made) == 0 and not made.probabilities().any()
    with pytest.raises(ContractError, match="nothing to draw"):
        made.draw(1)


def test_d23_absent_rows_take_no_priority_and_present_ones_no_second_place() -> None:
    made = sampler([1.0, 2.0, 3.0])
    made.remove(np.array([1]))
    for call in (lambda: made.update(np.array([0, 1]), np.ones(2)), lambda: made.remove(np.array([1]))):
        with pytest.raises(ContractError, match="row 1 is not present"):
            call()
    with pytest.raises(ContractError, match="row 2 is present already"):
        made.add(np.array([1, 2]))
    with pytest.raises(ContractError, match="distinct"):
        made.add(np.array([1, 1]))
    assert made.probabilities()[1] == 0.0 and len(made) == 2
    assert not (made.draw(1000).rows == 1).any()


def test_state_goes_on_with_the_same_bits() -> None:
    one = sampler([1.0, 2.0, 3.0, 4.0] * 30, anneal_draws=10, max_decay=0.9)
    one.draw(7)
    state = one.get_state()
    two = PrioritisedSampler(120, seed=99, settings=Prioritisation(anneal_draws=10, max_decay=0.9))
    two.set_state(
        {**json.loads(json.dumps({k: v for k, v in state.items() if k != "leaves"})), "leaves": state["leaves"]}
    )
    for _ in range(5):
        first, second = one.draw(9), two.draw(9)
        assert np.array_equal(first.rows, second.rows) and np.array_equal(first.weights, second.weights)
        for each in (one, two):
            each.update(first.rows, first.rows / 3.0)
            each.remove(np.array([first.rows[0]]))
            each.add(np.array([first.rows[0]]))
    assert np.array_equal(one.probabilities(), two.probabilities())


@pytest.mark.parametrize(
    "change",
    [{"leaves": np.ones(3)}, {"leaves": np.full(4, np.nan)}, {"rng": {}}, {"draws": -1}, {"max_priority": np.inf}],
)
def test_a_foreign_state_is_refused_and_changes_nothing(change: dict[str, object]) -> None:
    made = sampler([1.0, 2.0, 3.0, 4.0])
    state, before = made.get_state(), made.probabilities()
    with pytest.raises(ContractError):
        made.set_state({**state, **change})
    with pytest.raises(ContractError, match="prioritised sampler"):
        made.set_state({name: value for name, value in state.items() if name != next(iter(change))})
    assert np.array_equal(made.probabilities(), before)
    assert made.draw(20).rows.tolist() == sampler([1.0, 2.0, 3.0, 4.0]).draw(20).rows.tolist()


@pytest.mark.parametrize(
    "wrong", [{"alpha": -0.1}, {"beta": 1.5}, {"eps": 0.0}, {"eps": np.nan}, {"anneal_draws": -1}, {"max_decay": 0.0}]
)
def test_exponents_without_a_meaning_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ContractError, match=next(iter(wrong))):
        PrioritisedSampler(4, seed=0, settings=Prioritisation(**wrong))


def test_a_sequence_counts_by_its_peak_and_its_mean() -> None:
    deltas = np.array([[1.0, -2.0], [-3.0, 0.0], [50.0, 0.0]])
    valid = np.array([[True, True], [True, True], [False, True]])
    np.testing.assert_allclose(sequence_magnitudes(deltas, valid), [0.9 * 3 + 0.1 * 2, 0.9 * 2 + 0.1 * 2 / 3])
    np.testing.assert_allclose(sequence_magnitudes(deltas, valid, peak_share=0.0), [2.0, 2 / 3])
    with pytest.raises(ContractError, match="every column"):
        sequence_magnitudes(deltas, np.zeros((3, 2), dtype=np.bool_))
