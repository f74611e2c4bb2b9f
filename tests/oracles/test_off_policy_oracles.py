"""Off-policy estimates against enumeration of every trajectory, against literal loops, and against known faults."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np
import pytest
from scipy import optimize

from simic.numerics import off_policy
from simic.numerics.off_policy import ESTIMATORS, LoggedEpisodes, bounded_returns, logged_mean, mean_weight
from simic.numerics.ratio_sums import joined, ratio_bootstrap, ratio_student

STATES, ACTIONS, HORIZON = 3, 2, 3


class Problem(NamedTuple):
    """A tabular problem with a reward per state and action."""

    start: np.ndarray
    move: np.ndarray
    reward: np.ndarray
    target: np.ndarray
    behaviour: np.ndarray


def problem() -> Problem:
    generator = np.random.default_rng(1)
    return Problem(
        generator.dirichlet(np.ones(STATES)),
        generator.dirichlet(np.ones(STATES), size=(STATES, ACTIONS)),
        generator.normal(size=(STATES, ACTIONS)),
        generator.dirichlet(np.ones(ACTIONS), size=STATES),
        generator.dirichlet(np.ones(ACTIONS), size=STATES),
    )


def values_of(given: Problem, discount: float) -> tuple[np.ndarray, np.ndarray]:
    """Q [T, S, A] and V [T, S] of the target by dynamic programming."""
    q, v = np.zeros((HORIZON, STATES, ACTIONS)), np.zeros((HORIZON + 1, STATES))
    for t in reversed(range(HORIZON)):
        q[t] = given.reward + discount * given.move @ v[t + 1]
        v[t] = (given.target * q[t]).sum(axis=1)
    return q, v[:-1]


class Enumerated(NamedTuple):
    """All trajectories [T, B] with their probability [B] under the behaviour."""

    probability: np.ndarray
    states: np.ndarray
    actions: np.ndarray


def enumerated(given: Problem) -> Enumerated:
    paths = np.array(list(itertools.product(range(STATES), range(ACTIONS), repeat=HORIZON))).T
    states, actions = paths[::2], paths[1::2]
    probability = given.start[states[0]] * given.behaviour[states, actions].prod(axis=0)
    for t in range(HORIZON - 1):
        probability *= given.move[states[t], actions[t], states[t + 1]]
    assert paths.shape[1] == 216
    assert probability.sum() == pytest.approx(1.0, abs=1e-12)
    return Enumerated(probability, states, actions)


def logged(given: Problem, states: np.ndarray, actions: np.ndarray, discount: float, q: np.ndarray) -> LoggedEpisodes:
    steps = np.arange(HORIZON)[:, None]
    return LoggedEpisodes.of(
        log_prob_target=np.log(given.target[states, actions]),
        log_prob_behaviour=np.log(given.behaviour[states, actions]),
        rewards=given.reward[states, actions],
        valid=np.ones(states.shape, dtype=bool),
        discount=discount,
        q_values=q[steps, states, actions],
        state_values=(given.target * q).sum(axis=2)[steps, states],
    )


@pytest.mark.parametrize("discount", [1.0, 0.9])
def test_unbiased_estimates_equal_dynamic_programming_over_all_216_trajectories(discount: float) -> None:
    given = problem()
    all_of, wrong = enumerated(given), np.random.default_rng(2).normal(size=(HORIZON, STATES, ACTIONS))
    truth = float(given.start @ values_of(given, discount)[1][0])
    episodes = logged(given, all_of.states, all_of.actions, discount, wrong)
    for name in ("IS", "PDIS", "DR"):
        sums = ESTIMATORS[name](episodes).sums
        assert all_of.probability @ sums.numerators[:, 0] == pytest.approx(truth, abs=1e-12), name
    weight = mean_weight(episodes).numerators[:, 0]
    assert all_of.probability @ weight == pytest.approx(1.0, abs=1e-12)
    single = np.exp(np.diff(episodes.log_weights, axis=0, prepend=0.0))  # a ratio per step and no product
    assert abs(all_of.probability @ (single * episodes.rewards).sum(axis=0) - truth) > 1e-2


def test_doubly_robust_has_no_variance_with_the_true_values_of_a_deterministic_problem() -> None:
    given = problem()
    move = np.eye(STATES)[given.move.argmax(axis=2)]
    given = given._replace(move=move, start=np.eye(STATES)[0])
    all_of, (q, v) = enumerated(given), values_of(given, 1.0)
    possible = all_of.probability > 0.0
    episodes = logged(given, all_of.states[:, possible], all_of.actions[:, possible], 1.0, q)
    np.testing.assert_allclose(ESTIMATORS["DR"](episodes).sums.numerators[:, 0], v[0, 0], atol=1e-12)


def drawn(given: Problem, count: int, q: np.ndarray, seed: int = 3) -> LoggedEpisodes:
    all_of = enumerated(given)
    rows = np.random.default_rng(seed).choice(216, size=count, p=all_of.probability)
    return logged(given, all_of.states[:, rows], all_of.actions[:, rows], 1.0, q)


def test_weighted_estimates_are_consistent_and_wis_stays_within_the_returns() -> None:
    given = problem()
    truth = float(given.start @ values_of(given, 1.0)[1][0])
    wrong = np.random.default_rng(4).normal(size=(HORIZON, STATES, ACTIONS))
    episodes = drawn(given, 100_000, wrong)
    for name, estimate in ESTIMATORS.items():
        found = estimate(episodes)
        assert found.value == pytest.approx(truth, abs=5 * ratio_error(found.sums)), name
    few = drawn(given, 5, wrong)
    assert few.rewards.sum(axis=0).min() <= ESTIMATORS["WIS"](few).value <= few.rewards.sum(axis=0).max()


def ratio_error(sums: off_policy.RatioSums) -> float:
    return (ratio_student(sums, 0.6827).upper - sums.value) * 1.0


def random_case(seed: int) -> dict[str, np.ndarray]:
    """Episodes of different lengths, some with an action that the target never takes."""
    generator = np.random.default_rng(seed)
    steps, count = int(generator.integers(1, 7)), int(generator.integers(2, 9))
    valid = np.arange(steps)[:, None] < generator.integers(1, steps + 1, size=count)
    shape = valid.shape
    target = np.log(generator.uniform(0.05, 1.0, shape))
    target[generator.random(shape) < 0.05] = -np.inf
    noise = {name: np.where(valid, generator.normal(size=shape), np.nan) for name in ("q_values", "state_values")}
    return {
        "log_prob_target": target,
        "log_prob_behaviour": np.log(generator.uniform(0.05, 1.0, shape)),
        "rewards": generator.normal(size=shape),
        "valid": valid,
        **noise,
    }


def literal(case: dict[str, np.ndarray], discount: float) -> dict[str, float]:
    """All estimates but MAGIC by loops over episodes and steps."""
    steps, count = case["valid"].shape
    weight = [[1.0] * count for _ in range(steps + 1)]
    for t in range(steps):
        for i in range(count):
            log = case["log_prob_target"][t, i] - case["log_prob_behaviour"][t, i] if case["valid"][t, i] else 0.0
            weight[t + 1][i] = weight[t][i] * math.exp(log)
    total = dict.fromkeys(("IS", "PDIS", "WIS", "PDWIS", "DR", "WDR"), 0.0)
    for i in range(count):
        own = sum(discount**t * case["rewards"][t, i] for t in range(steps) if case["valid"][t, i])
        total["IS"] += weight[steps][i] * own / count
        total["WIS"] += weight[steps][i] * own / (sum(weight[steps]) or math.nan)
        for t in range(steps):
            if not case["valid"][t, i]:
                continue
            reward, q, v = (discount**t * case[name][t, i] for name in ("rewards", "q_values", "state_values"))
            after, before = weight[t + 1][i], weight[t][i]
            total["PDIS"] += after * reward / count
            total["PDWIS"] += after * reward / (sum(weight[t + 1]) or math.nan)
            total["DR"] += (after * (reward - q) + before * v) / count
            total["WDR"] += after * (reward - q) / (sum(weight[t + 1]) or math.nan)
            total["WDR"] += before * v / (sum(weight[t]) or math.nan)
    return total


@pytest.mark.parametrize("seed", range(60))
def test_every_estimate_equals_a_literal_loop(seed: int) -> None:
    case = random_case(seed)
    episodes = LoggedEpisodes.of(**case, discount=0.95)
    for name, expected in literal(case, 0.95).items():
        found = ESTIMATORS[name](episodes)
        if math.isnan(expected) or found.value is None:
            assert found.value is None and (episodes.log_weights[-1] == -np.inf).all(), name
        else:
            assert found.value == pytest.approx(expected, abs=1e-9), name
        weights = np.exp(episodes.log_weights[-1])
        assert found.overlap == pytest.approx((weights > 0).mean())
        assert found.largest_weight == pytest.approx(weights.max())
        assert 0.0 <= found.effective_sample_size <= found.n + 1e-9


def test_forty_steps_with_tiny_probabilities_stay_finite_and_are_counted() -> None:
    shape = (40, 30)
    tiny = np.full(shape, -18.0)
    tiny[:, 0] = -30.0
    episodes = LoggedEpisodes.of(
        log_prob_target=np.zeros(shape), log_prob_behaviour=tiny, rewards=np.ones(shape),
        valid=np.ones(shape, dtype=bool), q_values=np.ones(shape), state_values=np.ones(shape),
    )  # fmt: skip
    for name, estimate in ESTIMATORS.items():
        found = estimate(episodes)
        assert math.isfinite(found.value), name
        assert math.isfinite(ratio_student(found.sums).upper), name
        assert found.clip_count == 40 + 30, "40 steps of the first episode, and every whole weight"
    assert ESTIMATORS["WIS"](episodes).value == pytest.approx(40.0)
    reverse = LoggedEpisodes.of(
        log_prob_target=tiny, log_prob_behaviour=np.zeros(shape), rewards=np.ones(shape), valid=np.ones(shape, bool)
    )
    assert ESTIMATORS["IS"](reverse).value == pytest.approx(0.0)
    assert ESTIMATORS["WIS"](reverse).value == pytest.approx(40.0), "scaled weights do not vanish"


def test_magic_trusts_a_perfect_model_and_not_a_wrong_one_and_never_blends_uniformly() -> None:
    given = problem()
    truth = float(given.start @ values_of(given, 1.0)[1][0])
    q, _ = values_of(given, 1.0)
    right, wrong = drawn(given, 400, q), drawn(given, 400, q + 5.0 * np.arange(1, HORIZON + 1)[:, None, None])
    assert abs(ESTIMATORS["MAGIC"](right).value - truth) <= abs(ESTIMATORS["IS"](right).value - truth)
    found, whole = ESTIMATORS["MAGIC"](wrong), ESTIMATORS["WDR"](wrong)
    assert found.value == pytest.approx(whole.value, abs=0.35)
    model_alone = wrong.state_values[0].mean()
    assert abs(model_alone - truth) > 4.0, "a uniform blend would be pulled to this"


@pytest.mark.parametrize("seed", range(5))
def test_the_blend_is_the_least_point_of_the_simplex(seed: int) -> None:
    root = np.random.default_rng(seed).normal(size=(6, 6))
    matrix = root.T @ root
    found = off_policy._least_on_simplex(matrix)
    best = optimize.minimize(
        lambda x: x @ matrix @ x, np.full(6, 1 / 6), jac=lambda x: 2 * matrix @ x, bounds=[(0, 1)] * 6,
        constraints={"type": "eq", "fun": lambda x: x.sum() - 1}, tol=1e-14,
    )  # fmt: skip
    assert found.sum() == pytest.approx(1.0)
    assert (found >= 0.0).all()
    assert found @ matrix @ found <= best.fun + 1e-9


def test_differences_are_paired_and_episodes_of_a_host_stay_together() -> None:
    given = problem()
    episodes = drawn(given, 60, values_of(given, 1.0)[0])
    estimate = ESTIMATORS["PDWIS"](episodes)
    difference = joined(estimate.sums, logged_mean(episodes))
    assert difference.value == pytest.approx(estimate.value - episodes.rewards.sum(axis=0).mean())
    same = joined(logged_mean(episodes), logged_mean(episodes))
    assert ratio_bootstrap(same, samples=50)[1:] == pytest.approx((0.0, 0.0), abs=1e-12)
    hosts = np.arange(60) // 20
    grouped = difference.by_group(hosts)
    assert grouped.numerators.shape == (3, 2 * 0 + HORIZON + 1)
    assert grouped.value == pytest.approx(difference.value)
    one_host = off_policy.RatioSums(np.ones((40, 1)) * np.repeat([0.0, 1.0], 20)[:, None], np.ones((40, 1)))
    alone, together = ratio_bootstrap(one_host), ratio_bootstrap(one_host.by_group(np.repeat([0, 1], 20)))
    assert together.upper - together.lower > 2 * (alone.upper - alone.lower)


def test_bounded_returns_bound_the_value_from_below() -> None:
    given = problem()
    all_of, q = enumerated(given), np.zeros((HORIZON, STATES, ACTIONS))
    truth = float(given.start @ values_of(given, 1.0)[1][0])
    episodes = logged(given, all_of.states, all_of.actions, 1.0, q)
    low, high = episodes.rewards.sum(axis=0).min(), episodes.rewards.sum(axis=0).max()
    means = [all_of.probability @ bounded_returns(episodes, low, high, cut) + low for cut in (0.5, 2.0, 1e9)]
    assert means[0] < means[1] < means[2] == pytest.approx(truth)
    with pytest.raises(ValueError, match="returns must lie"):
        bounded_returns(episodes, low + 0.1, high, 1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"log_prob_behaviour": np.array([[np.nan]])}, "log_prob_behaviour"),
        ({"log_prob_behaviour": np.array([[-np.inf]])}, "log_prob_behaviour"),
        ({"log_prob_target": np.array([[0.5]])}, "positive"),
        ({"rewards": np.array([[np.inf]])}, "rewards"),
        ({"rewards": np.zeros((2, 1))}, "rewards"),
        ({"valid": np.array([[False]])}, "valid"),
        ({"valid": np.zeros((0, 1), dtype=bool)}, "valid"),
    ],
)
def test_arrays_that_are_no_log_are_refused(change: dict[str, np.ndarray], message: str) -> None:
    case = {name: np.zeros((1, 1)) for name in ("log_prob_target", "log_prob_behaviour", "rewards")}
    with pytest.raises(ValueError, match=message):
        LoggedEpisodes.of(**{**case, "valid": np.ones((1, 1), dtype=bool), **change})


def test_a_target_without_overlap_has_no_weighted_estimate() -> None:
    episodes = LoggedEpisodes.of(
        log_prob_target=np.full((2, 3), -np.inf), log_prob_behaviour=np.zeros((2, 3)), rewards=np.ones((2, 3)),
        valid=np.ones((2, 3), dtype=bool),
    )  # fmt: skip
    found = ESTIMATORS["WIS"](episodes)
    assert (found.value, found.effective_sample_size, found.overlap, found.largest_share) == (None, 0.0, 0.0, 1.0)
    assert ratio_bootstrap(found.sums) is None
    assert ratio_student(found.sums) is None
    assert ESTIMATORS["DR"](episodes).value is None, "no model"
