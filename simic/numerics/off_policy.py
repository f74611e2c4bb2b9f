"""Off-policy estimates: the expected return of a target policy from episodes that another one, the behaviour, logged.

Every episode has the weight of the product of pi/mu over its actions. The weights correct for the actions that the
target takes more or less often than the behaviour. An estimate is a function of the weights, the rewards and, for the
doubly robust ones, of an action-value function that need not be right.

Shape legend: T time, B episodes, K terms, J lengths; time-major. An ended episode keeps its last weight in the padding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from simic.numerics.importance import cumulative_log_weights
from simic.numerics.ratio_sums import RatioSums, ratio_bootstrap

__all__ = [
    "ESTIMATORS",
    "NEEDS_MODEL",
    "LoggedEpisodes",
    "OffPolicyEstimate",
    "bounded_returns",
    "logged_mean",
    "mean_weight",
]

Floats = NDArray[np.float64]

MAGIC_CONFIDENCE = 0.9
"""Confidence of the interval outside which a partial return counts as biased."""
MAGIC_SAMPLES = 200
MAGIC_LENGTHS = 17
"""Largest number of partial returns that MAGIC blends."""


class LoggedEpisodes(NamedTuple):
    """Whole episodes and the weights of their prefixes; made by ``of``, which checks everything."""

    rewards: Floats
    """[T, B], discounted to the first step; 0 in padding, as the two models."""
    log_weights: Floats
    """[T, B]: of the actions up to and including t; -inf for a weight of 0."""
    clip_count: int
    """Number of clamped ratios of steps, and of weights of whole episodes."""
    q_values: Floats | None
    """[T, B]: the model's values of the logged actions, discounted to the first step."""
    state_values: Floats | None
    """[T, B]: the model's values of the states, discounted to the first step."""

    @staticmethod
    def of(
        *,
        log_prob_target: Floats,
        log_prob_behaviour: Floats,
        rewards: Floats,
        valid: NDArray[np.bool_],
        discount: float = 1.0,
        q_values: Floats | None = None,
        state_values: Floats | None = None,
    ) -> LoggedEpisodes:
        """Check the arrays [T, B] and compute the weights; entries in padding are ignored.

        Args:
            log_prob_target: joint log-probability of the logged action under the target; -inf if it never takes it.
            log_prob_behaviour: the same under the behaviour; finite, because the behaviour took the action.
            rewards: reward of each step.
            valid: true for the steps of an episode, which come first; false in padding.
            discount: discount per step.
            q_values: a model's values of the logged actions, under the target from then on.
            state_values: the mean of the same model's action values over the target's actions.

        Raises:
            ValueError: for other shapes, an episode without steps or with a gap, or numbers that are not finite.
        """
        used = np.asarray(valid, dtype=np.bool_)
        if used.ndim != 2 or not used.size or not used[0].all() or (used[1:] & ~used[:-1]).any():
            raise ValueError(f"valid: expected [T, B] of whole episodes from their first step, found {used.shape}")
        target = _checked("log_prob_target", log_prob_target, used, allows_impossible=True)
        behaviour = _checked("log_prob_behaviour", log_prob_behaviour, used)
        if max(target.max(), behaviour.max()) > 1e-4:
            raise ValueError("log-probabilities must not be positive")
        weights = cumulative_log_weights(*(torch.from_numpy(array) for array in (target, behaviour, used)))
        factors = np.float64(discount) ** np.arange(len(used), dtype=np.float64)[:, None]
        models = {"q_values": q_values, "state_values": state_values}
        return LoggedEpisodes(
            factors * _checked("rewards", rewards, used),
            weights.values.numpy(),
            int(weights.clamp_count),
            *(None if model is None else factors * _checked(name, model, used) for name, model in models.items()),
        )

    def weights(self) -> Floats:
        """Return the weights [T, B], over the largest one of each step; zeros where all weights of a step are 0."""
        most = self.log_weights.max(axis=1, keepdims=True)
        scaled: Floats = np.exp(self.log_weights - np.where(np.isneginf(most), 0.0, most))
        return scaled


class OffPolicyEstimate(NamedTuple):
    """An estimate in the unit of the rewards, and what it rests on."""

    value: float | None
    """None where it is not defined: every weight is 0, or a model is needed and missing."""
    n: int
    """Number of episodes."""
    effective_sample_size: float
    """(sum w)^2 / sum w^2 (Kish 1965): the least over the steps for per-decision estimates."""
    largest_weight: float
    """Largest weight of a whole episode."""
    largest_share: float
    """The same as a share of the sum of all weights."""
    overlap: float
    """Share of the episodes that the target could have logged, too: those with a weight above 0."""
    clip_count: int
    """Number of ratios and weights that were clamped."""
    sums: RatioSums | None
    """The terms of the estimate by episode, from which intervals follow."""


def importance_sampling(episodes: LoggedEpisodes) -> OffPolicyEstimate:
    """Return mean(w G): unbiased; weights of whole episodes (Precup, Sutton and Singh 2000)."""
    return _estimate(episodes, _mean(np.exp(episodes.log_weights[-1]) * episodes.rewards.sum(axis=0)))


def per_decision_importance_sampling(episodes: LoggedEpisodes) -> OffPolicyEstimate:
    """Return mean(sum_t w_t r_t): unbiased; a reward has the weight of the actions before it (Precup et al. 2000)."""
    return _estimate(episodes, _mean((np.exp(episodes.log_weights) * episodes.rewards).sum(axis=0)), is_stepwise=True)


def weighted_importance_sampling(episodes: LoggedEpisodes) -> OffPolicyEstimate:
    """Return sum(w G) / sum(w): biased, consistent, and never outside the returns that were logged."""
    weights = episodes.weights()[-1]
    return _estimate(episodes, RatioSums((weights * episodes.rewards.sum(axis=0))[:, None], weights[:, None]))


def per_decision_weighted_importance_sampling(episodes: LoggedEpisodes) -> OffPolicyEstimate:
    """Return sum_t [sum(w_t r_t) / sum(w_t)]: consistent (Thomas 2015, Safe reinforcement learning)."""
    weights = episodes.weights()
    return _estimate(episodes, RatioSums((weights * episodes.rewards).T, weights.T), is_stepwise=True)


def doubly_robust(episodes: LoggedEpisodes) -> OffPolicyEstimate:
    """Return mean(sum_t w_t (r_t - Q_t) + w_{t-1} V_t): unbiased with any Q (Jiang and Li 2016)."""
    if episodes.q_values is None or episodes.state_values is None:
        return _estimate(episodes, None, is_stepwise=True)
    weights = np.exp(episodes.log_weights)
    before = np.concatenate([np.ones_like(weights[:1]), weights[:-1]])
    terms = weights * (episodes.rewards - episodes.q_values) + before * episodes.state_values
    return _estimate(episodes, _mean(terms.sum(axis=0)), is_stepwise=True)


def weighted_doubly_robust(episodes: LoggedEpisodes) -> OffPolicyEstimate:
    """Return the doubly robust estimate with the weights of each step over their sum (Thomas and Brunskill 2016)."""
    return _estimate(episodes, _weighted_terms(episodes), is_stepwise=True)


def magic(episodes: LoggedEpisodes) -> OffPolicyEstimate:
    """Return the blend of partial returns with the least estimated error (Thomas and Brunskill 2016).

    Partial return j follows the weights up to step j and the model from then on. The blend x minimises x' (C + b b') x
    over the simplex: C is the covariance of the partial returns, linearised because weights are normalised by their own
    sums, and b the distance of each from a bootstrap interval of the whole one. Lengths are spread evenly over the
    horizon. Intervals from ``sums`` hold the blend fixed.
    """
    terms = _weighted_terms(episodes)
    if terms is None or terms.value is None or len(terms.numerators) < 2:
        return _estimate(episodes, terms, is_stepwise=True)
    steps = len(episodes.rewards)
    lengths = np.unique(np.linspace(0, steps, min(steps + 1, MAGIC_LENGTHS)).round().astype(np.int64))
    blend = _blend(terms, lengths)
    corrected, valued = np.zeros(steps), np.zeros(steps)
    for share, length in zip(blend, lengths.tolist(), strict=True):
        corrected[:length] += share
        valued[: length + 1] += share
    numerators = terms.numerators * np.concatenate([corrected, valued])
    return _estimate(episodes, RatioSums(numerators, terms.denominators), is_stepwise=True)


ESTIMATORS: Mapping[str, Callable[[LoggedEpisodes], OffPolicyEstimate]] = {
    "IS": importance_sampling,
    "PDIS": per_decision_importance_sampling,
    "WIS": weighted_importance_sampling,
    "PDWIS": per_decision_weighted_importance_sampling,
    "DR": doubly_robust,
    "WDR": weighted_doubly_robust,
    "MAGIC": magic,
}
"""All estimators by the name that tables show."""
NEEDS_MODEL = frozenset({"DR", "WDR", "MAGIC"})
"""Names of the estimators that need a model of the values."""


def logged_mean(episodes: LoggedEpisodes) -> RatioSums:
    """Return the terms of the behaviour's own mean return."""
    return _mean(episodes.rewards.sum(axis=0))


def mean_weight(episodes: LoggedEpisodes) -> RatioSums:
    """Return the terms of the mean weight of whole episodes.

    Its expectation is 1, or the probability of the target's episodes that the behaviour can log, where it cannot log
    all of them.
    """
    return _mean(np.exp(episodes.log_weights[-1]))


def bounded_returns(episodes: LoggedEpisodes, low: float, high: float, cut: float) -> Floats:
    """Return min(w, cut) (G - low) [B], which lies in [0, cut (high - low)] if all returns lie in [low, high].

    Its expectation plus ``low`` is at most the target's value, whatever the weights: a lower confidence bound of the
    mean is one of the value (Thomas, Theocharous and Ghavamzadeh 2015, High confidence off-policy evaluation).

    Raises:
        ValueError: if a return lies outside the range.
    """
    returns = episodes.rewards.sum(axis=0)
    if not (low <= returns.min() and returns.max() <= high):
        raise ValueError(f"returns must lie in [{low}, {high}], found {returns.min():.3f} to {returns.max():.3f}")
    bounded: Floats = np.minimum(np.exp(episodes.log_weights[-1]), cut) * (returns - low)
    return bounded


def _checked(name: str, array: Floats, used: NDArray[np.bool_], *, allows_impossible: bool = False) -> Floats:
    """Return a float64 copy with 0 in padding; raise ValueError for another shape or a number that is not finite."""
    values = np.asarray(array, dtype=np.float64)
    if values.shape != used.shape:
        raise ValueError(f"{name}: expected {used.shape}, found {values.shape}")
    clean = np.where(used, values, 0.0)
    if not (np.isfinite(clean) | (np.isneginf(clean) & allows_impossible)).all():
        raise ValueError(f"{name}: expected finite numbers in all steps of episodes")
    return clean


def _mean(values: Floats) -> RatioSums:
    return RatioSums(values[:, None], np.ones((len(values), 1)))


def _weighted_terms(episodes: LoggedEpisodes) -> RatioSums | None:
    """Return the terms of weighted DR: corrections of all steps, then values of all states; None without a model."""
    if episodes.q_values is None or episodes.state_values is None:
        return None
    weights = episodes.weights()
    before = np.concatenate([np.ones_like(weights[:1]), weights[:-1]])
    corrections = weights * (episodes.rewards - episodes.q_values)
    return RatioSums(
        np.concatenate([corrections, before * episodes.state_values]).T, np.concatenate([weights, before]).T
    )


def _estimate(episodes: LoggedEpisodes, sums: RatioSums | None, *, is_stepwise: bool = False) -> OffPolicyEstimate:
    weights = episodes.weights()
    total, squares = weights.sum(axis=1), np.square(weights).sum(axis=1)
    sizes = np.divide(np.square(total), squares, out=np.zeros_like(total), where=squares > 0.0)
    return OffPolicyEstimate(
        value=None if sums is None else sums.value,
        n=weights.shape[1],
        effective_sample_size=float(sizes.min() if is_stepwise else sizes[-1]),
        largest_weight=float(np.exp(episodes.log_weights[-1].max())),
        largest_share=float(weights[-1].max() / total[-1]) if total[-1] > 0.0 else 1.0,
        overlap=float((weights[-1] > 0.0).mean()),
        clip_count=episodes.clip_count,
        sums=sums,
    )


def _blend(terms: RatioSums, lengths: NDArray[np.int64]) -> Floats:
    """Return the shares [J] of the partial returns of ``lengths`` [J], in steps; ``terms`` are those of weighted DR."""
    count, interval = len(terms.numerators), ratio_bootstrap(terms, MAGIC_CONFIDENCE, MAGIC_SAMPLES)
    if interval is None:
        whole: Floats = np.eye(len(lengths))[-1]
        return whole
    below = terms.denominators.sum(axis=0)
    ratios = terms.numerators.sum(axis=0) / below
    returns = _partial_returns(ratios[None])[0, lengths]
    deviations = _partial_returns((terms.numerators - ratios * terms.denominators) / below)[:, lengths]
    bias = returns - np.clip(returns, interval.lower, interval.upper)
    return _least_on_simplex(deviations.T @ deviations * (count / (count - 1.0)) + np.outer(bias, bias))


def _partial_returns(terms: Floats) -> Floats:
    """Return [B, T + 1] from corrections and values [B, 2 T]: both of all steps before t, and the value of state t."""
    corrections, values = np.split(terms, 2, axis=1)
    end = np.zeros_like(values[:, :1])
    before = np.concatenate([end, (corrections + values).cumsum(axis=1)], axis=1)
    returns: Floats = before + np.concatenate([values, end], axis=1)
    return returns


def _least_on_simplex(matrix: Floats) -> Floats:
    """Return the x >= 0 of sum 1 with the least x' matrix x, by active sets: pairs of shares are moved while it pays.

    ``matrix`` [J, J] is positive semidefinite. Each round moves weight from the worst used share to the best one, as
    far as pays (sequential minimal optimisation, Platt 1998); the objective never rises.
    """
    size = len(matrix)
    shares: Floats = np.eye(size)[int(np.argmin(np.diag(matrix)))]
    for _ in range(200 * size):
        slopes = matrix @ shares
        best = int(np.argmin(slopes))
        worst = int(np.argmax(np.where(shares > 0.0, slopes, -np.inf)))
        gap = slopes[worst] - slopes[best]
        if gap <= 1e-12 * max(1e-300, float(np.abs(np.diag(matrix)).max())):
            break
        curvature = matrix[best, best] + matrix[worst, worst] - 2.0 * matrix[best, worst]
        move = shares[worst] if curvature <= 0.0 else min(shares[worst], gap / curvature)
        shares[best], shares[worst] = shares[best] + move, shares[worst] - move
    return shares
