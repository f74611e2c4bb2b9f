"""Comparison of controllers by pairs, from trials on the same hosts.

Hosts are paired, so the p value that is adjusted comes from a paired test, the sign flips of the differences. The
probability of improvement ignores the pairing and only describes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import ceil, isfinite
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.app.container import Container
from simic.app.judging_experience import reporter_of_comparison
from simic.app.training import run_trials
from simic.app.trial_controllers import SelectedControllers, select_controllers
from simic.contracts.comparison import LEVEL, Comparison, PairComparison, SequentialStop, Verdict
from simic.contracts.config import TrialConfig
from simic.contracts.errors import ConfigError
from simic.contracts.splits import Split
from simic.contracts.trials import Estimate, TrialReport
from simic.hosts.host_sets import draw_keys, host_set, identify
from simic.numerics.comparisons import holm, minimum_detectable_effect, probability_of_improvement, sign_flip_p
from simic.numerics.sequential import anytime_interval, anytime_p
from simic.validation.episodes import Episodes, join
from simic.validation.trials import crossed_estimate, grow_all, paired_estimate, trial_report, trial_seed, with_wait

__all__ = ["Looks", "compare", "compare_pairs", "compare_until_decided", "looks_of"]

ROUND, FEWEST = 8, 32
"""Hosts of each family, and hosts in all, that at least grow between two looks."""
BEST_ROUNDS = 4
"""Rounds after which the test of a comparison that stops by itself is most powerful."""
BOUND = "mixture of self-normalised supermartingales (Howard, Ramdas, McAuliffe and Sekhon 2021)"


class Looks(NamedTuple):
    """Numbers of pairs that the test of ``compare_until_decided`` depends on."""

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


def compare(container: Container, arms: Sequence[str], host_keys: Sequence[int] | None, split: Split) -> Comparison:
    """Grow the same hosts under all arms and compare these by pairs.

    Raises:
        ConfigError: if fewer than 2 hosts or arms are named, two arms are the same, an arm is unknown, or the episodes
            are to land and a host is not of the test split.
    """
    if host_keys is not None and len(host_keys) < 2:
        raise ConfigError(f"a comparison needs 2 or more hosts, found {len(host_keys)}; give more --host-keys")
    labels = list(_selected(container, arms).specs)
    report = run_trials(container, arms, host_keys, split, may_land=True)
    return Comparison(pairs=compare_pairs(report, list(combinations(labels, 2)), container.config.trial), trials=report)


def _selected(container: Container, arms: Sequence[str]) -> SelectedControllers:
    if len(arms) < 2:
        found = arms[0] if arms else "none"
        raise ConfigError(f"a comparison needs 2 or more arms, with a space between them; found {found}")
    chosen = select_controllers(container, arms)
    if len(chosen.specs) != len(arms):
        raise ConfigError(f"expected different arms, found {', '.join(arms)}, which are {', '.join(chosen.specs)}")
    return chosen


def compare_until_decided(container: Container, arms: Sequence[str], split: Split) -> Comparison:
    """Compare as ``compare``, in rounds of hosts, until every pair shows a difference or all hosts have grown.

    The hosts are those of a trial of the present number of hosts per family. P values and intervals hold at every look
    (``numerics.sequential``), so that stopping when they show something keeps their level.

    Raises:
        ConfigError: if fewer than 2 arms are named, two arms are the same, an arm is unknown, the episodes are to land
            and the split is not the test split, or the hosts of the first look are too few for an interval of the
            confidence.
    """
    chosen, config, clock = _selected(container, arms), container.config, container.clock
    world, provenance, started_at = config.world, container.provenance, container.clock()
    families = len(host_set(world.set).families)
    counts, looks = looks_of(families, config.trial.hosts_per_family)
    _check_first_look(looks, config.trial)
    reporter = reporter_of_comparison(container, chosen, identify(world.set, draw_keys(world.set, split, counts[0])))
    specs, grown, keys = with_wait(chosen.specs), dict[str, Episodes](), list[int]()
    with container.progress.task("compare", counts[-1] * len(specs)) as advance:
        for count in counts:
            # The first hosts of each family: those of every larger count are among them.
            new = [key for key in draw_keys(world.set, split, count) if key not in set(keys)]
            found = grow_all(
                specs, identify(world.set, new), world, config.curate.reward.basic, trial_seed(provenance),
                lambda episodes: advance(len(episodes.returns)), reporter, config.curate.flags,
            )  # fmt: skip
            grown = {name: join([grown[name], part]) if grown else part for name, part in found.items()}
            keys += new
            report = trial_report(
                grown, identify(world.set, keys), world, config.trial, provenance=provenance, started_at=started_at,
                finished_at=clock(), policy_digest=None, plans_digest=chosen.plans_digest,
                without_book=chosen.without_book, book_differences=chosen.book_differences,
            )  # fmt: skip
            pairs = compare_pairs(report, list(combinations(chosen.specs, 2)), config.trial, looks)
            is_decided = all(pair.verdict is not Verdict.NOT_SHOWN for pair in pairs)
            if is_decided:
                break
    stop = SequentialStop(
        looks=counts.index(len(keys)) + 1,
        most_looks=len(counts),
        hosts=len(keys),
        most_hosts=counts[-1],
        is_decided=is_decided,
        bound=BOUND,
    )
    return Comparison(pairs=pairs, trials=container.save_receipt(report), sequential=stop)


def _check_first_look(looks: Looks, config: TrialConfig) -> None:
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
    found = []
    for (ours, theirs), (first, second, by), p, adjusted_p in zip(pairs, returns, raw, adjusted, strict=True):
        differences = first - second
        estimate = (
            paired_estimate(first, second, config, report.seed, report.families)
            if looks is None
            else _anytime_estimate(differences, config, looks)
        )
        found.append(
            PairComparison(
                controller=ours,
                against=theirs,
                difference=estimate,
                by_family=_by_family(first, second, report, config),
                p=p,
                adjusted_p=float(adjusted_p),
                probability_of_improvement=probability_of_improvement(first, second),
                detectable=minimum_detectable_effect(differences, len(pairs), alpha=LEVEL),
                verdict=_verdict(estimate.mean, float(adjusted_p)),
                scored_by=by,
            )
        )
    return found


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


def _verdict(difference: float, adjusted_p: float) -> Verdict:
    if adjusted_p > LEVEL:
        return Verdict.NOT_SHOWN
    return Verdict.BETTER if difference > 0.0 else Verdict.WORSE
