"""The figures of a comparison of recipes: returns of several trainings on the same hosts in, pairs out.

The unit of the test is a training. Its value is the mean return over hosts that all trainings share, so the spread
between hosts is in no difference, and the test holds for these hosts. Its hypothesis is that both recipes give values
of one distribution; equal medians are not enough. A recipe whose values do not vary gets no verdict: the level would
not hold against one that varies around the same value. The intervals are over hosts too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import comb
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.contracts.results.comparison import Verdict, verdict_of
from simic.contracts.results.recipes import RecipePair
from simic.contracts.settings.run import TrialConfig
from simic.numerics.comparisons import holm, mann_whitney_p, probability_of_improvement
from simic.validation.table import families_in_order
from simic.validation.trials import crossed_estimate

__all__ = ["Judging", "compare_recipes", "least_p", "pairs_of"]

Table = NDArray[np.float64]
"""Returns [S, N]: S training seeds, N hosts."""


class Judging(NamedTuple):
    """The hosts that judge, and how intervals are made."""

    set: str
    families: Sequence[str]
    """Family of each host."""
    config: TrialConfig


def pairs_of(names: Sequence[str], *, is_against_first: bool) -> list[tuple[str, str]]:
    """Return the pairs that are compared: each recipe and each later one, or each later one and the first."""
    if is_against_first:
        return [(name, names[0]) for name in names[1:]]
    return list(combinations(names, 2))


def compare_recipes(
    returns: Mapping[str, Table], judging: Judging, *, is_against_first: bool = False
) -> list[RecipePair]:
    """Return the first recipe of each pair of ``pairs_of`` minus the second; p is adjusted over these pairs.

    ``returns`` holds two or more training seeds, the same for all recipes, in the same order.
    """
    pairs = pairs_of(list(returns), is_against_first=is_against_first)
    means = {name: table.mean(axis=1) for name, table in returns.items()}
    raw = [mann_whitney_p(means[ours], means[theirs]) for ours, theirs in pairs]
    comparisons = []
    for (ours, theirs), p, adjusted in zip(pairs, raw, holm(raw).tolist(), strict=True):
        share = probability_of_improvement(means[ours], means[theirs])
        unjudged = _unjudged({name: means[name] for name in (ours, theirs)})
        comparisons.append(
            RecipePair(
                recipe=ours,
                against=theirs,
                verdict=Verdict.NOT_SHOWN if unjudged else verdict_of(share > 0.5, adjusted),
                unjudged=unjudged,
                **_differences(returns[ours] - returns[theirs], judging),
                u=share * len(means[ours]) * len(means[theirs]),
                p=p,
                adjusted_p=adjusted,
                probability_of_improvement=share,
                effect=2.0 * share - 1.0,
            )
        )
    return comparisons


def least_p(seeds: int, pairs: int) -> float:
    """Return the smallest p value, adjusted for ``pairs``, that ``seeds`` trainings of each recipe can give."""
    return min(1.0, pairs * 2.0 / comb(2 * seeds, seeds))


def _differences(values: Table, judging: Judging) -> dict[str, Any]:
    """Return the paired differences [S, N] over all, by training seed and by family."""
    labels, config = np.asarray(judging.families), judging.config
    rows = {name: labels == name for name in families_in_order(judging.set, judging.families)}
    return {
        "difference": crossed_estimate(values, config, judging.families),
        "by_seed": [crossed_estimate(row[None], config, judging.families) for row in values],
        "by_family": {name: crossed_estimate(values[:, own], config) for name, own in rows.items() if own.sum() >= 2},
    }


def _unjudged(means: Mapping[str, NDArray[np.float64]]) -> str | None:
    """Return why a pair gets no verdict, or None."""
    constant = [name for name, values in means.items() if np.ptp(values) == 0.0]
    if not constant:
        return None
    return (
        f"all {len(means[constant[0]])} trainings of {' and of '.join(constant)} have the same mean return (one that "
        "fails counts as never growing), and the test does not hold its level for a recipe that does not vary"
    )
