"""Comparison of controllers by pairs, from trials on the same hosts.

Hosts are paired, so the p value that is adjusted comes from a paired test, the sign flips of the differences. The
probability of improvement ignores the pairing and only describes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from simic.app.container import Container
from simic.app.training import run_trials
from simic.app.trial_controllers import select_controllers
from simic.contracts.comparison import Comparison, PairComparison, Verdict
from simic.contracts.config import TrialConfig
from simic.contracts.errors import ConfigError
from simic.contracts.receipts import Estimate, TrialReport
from simic.contracts.splits import Split
from simic.numerics.comparisons import holm, minimum_detectable_effect, probability_of_improvement, sign_flip_p
from simic.validation.trials import paired_estimate

__all__ = ["compare", "compare_pairs"]

LEVEL = 0.05
"""Largest adjusted p value of a difference that counts as shown."""


def compare(container: Container, arms: Sequence[str], host_keys: Sequence[int] | None, split: Split) -> Comparison:
    """Grow the same hosts under all arms and compare these by pairs.

    Raises:
        ConfigError: if fewer than 2 hosts or arms are named, two arms are the same, or an arm is unknown.
    """
    if len(arms) < 2:
        raise ConfigError(f"a comparison needs 2 or more arms, found {len(arms)}; name another controller or policy")
    if host_keys is not None and len(host_keys) < 2:
        raise ConfigError(f"a comparison needs 2 or more hosts, found {len(host_keys)}; give more --host-keys")
    labels = list(select_controllers(container, arms).specs)
    if len(labels) != len(arms):
        raise ConfigError(f"expected different arms, found {', '.join(arms)}, which are {', '.join(labels)}")
    report = run_trials(container, arms, host_keys, split)
    return Comparison(pairs=compare_pairs(report, labels, container.config.trial), trials=report)


def compare_pairs(report: TrialReport, arms: Sequence[str], config: TrialConfig) -> list[PairComparison]:
    """Return each arm minus each later one, those of the first arm first; p is adjusted over all pairs."""
    returns = {row.controller: np.asarray(row.returns) for row in report.controllers}
    pairs = list(combinations(arms, 2))
    raw = [sign_flip_p(returns[ours] - returns[theirs]) for ours, theirs in pairs]
    adjusted = holm(raw)
    found = []
    for (ours, theirs), p, adjusted_p in zip(pairs, raw, adjusted, strict=True):
        differences = returns[ours] - returns[theirs]
        estimate = paired_estimate(returns[ours], returns[theirs], config, report.seed, report.families)
        found.append(
            PairComparison(
                controller=ours,
                against=theirs,
                difference=estimate,
                by_family=_by_family(returns[ours], returns[theirs], report, config),
                p=p,
                adjusted_p=float(adjusted_p),
                probability_of_improvement=probability_of_improvement(returns[ours], returns[theirs]),
                detectable=minimum_detectable_effect(differences),
                verdict=_verdict(estimate.mean, float(adjusted_p)),
            )
        )
    return found


def _by_family(
    ours: NDArray[np.float64], theirs: NDArray[np.float64], report: TrialReport, config: TrialConfig
) -> dict[str, Estimate]:
    """Return the difference within each family of two or more hosts."""
    families = np.array(report.families)
    rows = {name: families == name for name in dict.fromkeys(report.families)}
    return {
        name: paired_estimate(ours[own], theirs[own], config, report.seed)
        for name, own in rows.items()
        if own.sum() >= 2
    }


def _verdict(difference: float, adjusted_p: float) -> Verdict:
    if adjusted_p > LEVEL:
        return Verdict.NOT_SHOWN
    return Verdict.BETTER if difference > 0.0 else Verdict.WORSE
