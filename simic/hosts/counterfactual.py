"""What seeds are worth: accuracy with them minus accuracy without them.

Leave-one-out is measured every epoch and smoothed; pairs and Shapley values are exact and computed on demand, from
the accuracy of every coalition. Nothing is estimated: what was not measured is NaN.
Shapes: N hosts, S slots, m places for seeds of a host.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from math import factorial
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.contracts.errors import ConfigError
from simic.hosts.lifecycle import Slots

__all__ = ["PLAYERS_MAX", "SMOOTHING", "Attribution", "attribute", "coalitions", "fold_contributions"]

SMOOTHING: Final = 0.5
"""Weight of the newest measurement; one measurement has a standard error near one point."""
PLAYERS_MAX: Final = 4
"""Seeds whose every coalition is still measured: 16 passes."""

Coalition = tuple[int, ...]


class Attribution(NamedTuple):
    """How a network's accuracy came about, seed by seed; NaN where a slot holds no seed that its host feels."""

    nothing: NDArray[np.float64]
    """[N]: accuracy with all seeds off."""
    everything: NDArray[np.float64]
    """[N]: with all seeds on."""
    leave_one_out: NDArray[np.float64]
    """[N, S]"""
    shapley: NDArray[np.float64]
    """[N, S]: mean gain over all orders of arrival (Shapley 1953); they add up to ``everything - nothing``."""
    pairs: NDArray[np.float64]
    """[N, S, S]: what two seeds gain together beyond what each gains alone, all others off; diagonal NaN."""


def fold_contributions(
    slots: Slots,
    accuracy: NDArray[np.float64],
    without: NDArray[np.float64],
    error: NDArray[np.float64],
    live: NDArray[np.bool_],
) -> None:
    """Fold a measurement and its standard error into the running averages of live hosts.

    The average is bias-corrected: weights of the past sum to 1 from the first measurement on. Epochs share their
    validation samples, so their errors count as fully correlated: the error of the average is the average of the
    errors. Slots where ``without`` [N, S] is NaN keep what they have and it grows older; a slot never measured
    stays NaN.
    """
    measured = np.isfinite(without) & np.isfinite(accuracy)[:, None] & live[:, None]
    value = np.where(measured, accuracy[:, None] - without, 0.0)
    weight = slots["contribution_weight"]
    weight[measured] = ((1.0 - SMOOTHING) * weight + SMOOTHING)[measured]
    for name, newest in (("contribution", value), ("contribution_error", error)):
        total = slots[f"{name}_sum"]
        total[measured] = ((1.0 - SMOOTHING) * total + SMOOTHING * newest)[measured]
        slots[name][measured] = total[measured] / weight[measured]
    slots["contribution_epochs"][~measured & (slots["contribution_epochs"] >= 0) & live[:, None]] += 1
    slots["contribution_epochs"][measured] = 0


def coalitions(seeds: int) -> list[Coalition]:
    """Every set of seeds of a host, the empty one first; more than ``PLAYERS_MAX`` seeds are a ConfigError."""
    if seeds > PLAYERS_MAX:
        raise ConfigError(f"exact attribution needs hosts that feel at most {PLAYERS_MAX} seeds, found {seeds}")
    return [chosen for size in range(seeds + 1) for chosen in combinations(range(seeds), size)]


def attribute(worth: Mapping[Coalition, NDArray[np.float64]], place: NDArray[np.int64]) -> Attribution:
    """Exact attribution from the accuracy [N] of every coalition of m places.

    ``place`` [N, S] says which place among its host's seeds a slot's seed takes, -1 where the host feels none; places
    that a host leaves empty change nothing there.
    """
    players = max(map(len, worth))
    everyone = tuple(range(players))
    hosts = np.arange(len(place))
    shapley, without = np.zeros((2, len(place), players + 1))
    pairs = np.zeros((len(place), players + 1, players + 1))
    for player in everyone:
        others = [one for one in everyone if one != player]
        without[:, player] = worth[everyone] - worth[tuple(others)]
        for size in range(players):
            share = factorial(size) * factorial(players - size - 1) / factorial(players)
            for chosen in combinations(others, size):
                shapley[:, player] += share * (worth[tuple(sorted((*chosen, player)))] - worth[chosen])
        for other in others:
            joint = worth[tuple(sorted((player, other)))] + worth[()]
            pairs[:, player, other] = joint - worth[(player,)] - worth[(other,)]
    is_felt = place >= 0
    both = is_felt[:, :, None] & is_felt[:, None, :] & ~np.eye(place.shape[1], dtype=bool)
    return Attribution(
        nothing=worth[()],
        everything=worth[everyone],
        leave_one_out=np.where(is_felt, without[hosts[:, None], place], np.nan),
        shapley=np.where(is_felt, shapley[hosts[:, None], place], np.nan),
        pairs=np.where(both, pairs[hosts[:, None, None], place[:, :, None], place[:, None, :]], np.nan),
    )
