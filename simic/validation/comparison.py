"""The figures of a comparison of controllers: trials on the same hosts in, pairs out.

Hosts are paired, so the p value that is adjusted comes from a paired test, the sign flips of the differences. The
probability of improvement ignores the pairing and only describes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isfinite
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.contracts.errors import ConfigError
from simic.contracts.results.comparison import LEVEL, PairComparison, verdict_of
from simic.contracts.results.trials import Estimate, TrialReport
from simic.contracts.settings.run import TrialConfig
from simic.numerics.comparisons import holm, minimum_detectable_effect, probability_of_improvement, sign_flip_p
from simic.numerics.sequential import anytime_interval, anytime_p
from simic.validation.trials import crossed_estimate, paired_estimate

__all__ = ["BEST_ROUNDS", "BOUND", "Looks", "check_first_look", "compare_pairs", "looks_of"]

ROUND, FEWEST = 8, 32
"""Hosts of each family, and hosts in all, that at least grow between two looks."""
BEST_ROUNDS = 4
"""Rounds after which the test of a comparison that stops by itself is most powerful."""
BOUND = "mixture of self-normalised supermartingales (Howard, Ramdas, McAuliffe and Sekhon 2021)"


class Looks(NamedTuple):
    """Numbers of pairs that the test of a comparison that stops by itself depends on."""

    first: int
    """Pairs at the first look."""
    best_at: int
    """Pairs at which the test is most powerful."""


def looks_of(families: int, most: int) -> tuple[list[int], Looks]:
    """Return the numbers of pairs at all looks, with at most ``most`` hosts of each family, and those of the test.

    The test does not depend on ``most``, so whoever raises it after a comparison continues the same test. Fewer than a
    round are a look of their own.
    """
    each = max(ROUND, ceil(FEWEST / families))
    counts = [families * count for count in [*range(each, most, each), most]]
    return counts, Looks(counts[0], BEST_ROUNDS * families * each)


def check_first_look(looks: Looks, config: TrialConfig) -> None:
    """Check that the hosts of the first look can give an interval, before they grow."""
    if looks.first < 2:
        raise ConfigError(
            f"--until-decided: {looks.first} host at the first look; expected 2 or more, set trial.hosts_per_family "
            "higher"
        )
    # Far from all differences, a mean is rejected as 0 is by equal ones.
    if float(anytime_p(np.ones(looks.first), *looks)) > 1.0 - config.confidence:
        raise ConfigError(_no_interval(looks.first, config))


def _no_interval(hosts: int, config: TrialConfig) -> str:
    return (
        f"{hosts} hosts give no interval at trial.confidence {config.confidence:g} that holds at every look; lower it, "
        "set trial.hosts_per_family higher, or compare without --until-decided"
    )


def compare_pairs(
    report: TrialReport, pairs: Sequence[tuple[str, str]], config: TrialConfig, looks: Looks | None = None
) -> list[PairComparison]:
    """Return the first arm of each pair minus the second; p is adjusted over these pairs.

    A pair with an arm that searches is compared by test accuracy. With ``looks``, p values and intervals hold at every
    look, and the hosts are in the order in which they grew.
    """
    returns = [_scored(report, *pair) for pair in pairs]
    raw = [
        sign_flip_p(first - second) if looks is None else float(anytime_p(first - second, *looks))
        for first, second, _ in returns
    ]
    adjusted = holm(raw)
    comparisons = []
    for (ours, theirs), (first, second, by), p, adjusted_p in zip(pairs, returns, raw, adjusted, strict=True):
        differences = first - second
        estimate = (
            paired_estimate(first, second, config, report.seed, report.families)
            if looks is None
            else _anytime_estimate(differences, config, looks)
        )
        comparisons.append(
            PairComparison(
                controller=ours,
                against=theirs,
                difference=estimate,
                by_family=_by_family(first, second, report, config),
                p=p,
                adjusted_p=float(adjusted_p),
                probability_of_improvement=probability_of_improvement(first, second),
                detectable=minimum_detectable_effect(differences, len(pairs), alpha=LEVEL),
                verdict=verdict_of(estimate.mean > 0.0, float(adjusted_p)),
                scored_by=by,
            )
        )
    return comparisons


class _Scored(NamedTuple):
    """The returns of two controllers, [N] each, and the accuracy that both end with."""

    first: NDArray[np.float64]
    second: NDArray[np.float64]
    by: Literal["validation", "test"]


def _scored(report: TrialReport, *pair: str) -> _Scored:
    """Return the returns of a pair, by test accuracy if one of them is scored so."""
    ours, theirs = (next(row for row in report.controllers if row.controller == name) for name in pair)
    if "test" in (ours.scored_by, theirs.scored_by):
        return _Scored(np.asarray(ours.test_returns), np.asarray(theirs.test_returns), "test")
    return _Scored(np.asarray(ours.returns), np.asarray(theirs.returns), "validation")


def _anytime_estimate(differences: NDArray[np.float64], config: TrialConfig, looks: Looks) -> Estimate:
    mean, lower, upper = anytime_interval(differences, config.confidence, *looks)
    if not isfinite(upper - lower):
        raise ConfigError(_no_interval(len(differences), config))
    return Estimate(mean=mean, lower=lower, upper=upper, confidence=config.confidence, n=len(differences))


def _by_family(
    ours: NDArray[np.float64], theirs: NDArray[np.float64], report: TrialReport, config: TrialConfig
) -> dict[str, Estimate]:
    """Return the difference within each family of two or more hosts."""
    families = np.array(report.families)
    rows = {name: families == name for name in dict.fromkeys(report.families)}
    return {
        name: crossed_estimate((ours - theirs)[np.newaxis, own], config) for name, own in rows.items() if own.sum() >= 2
    }
