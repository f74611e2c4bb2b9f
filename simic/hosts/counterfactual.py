"""Seed attribution: accuracy with seeds minus accuracy without them.

Leave-one-out is measured every epoch and smoothed. Pair interactions and Shapley values are exact: they are computed
on demand from the accuracy of every coalition. Values that were not measured are NaN.
Shapes: N hosts, S slots, m players (active seeds of one host, numbered from 0).
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

__all__ = ["PLAYERS_MAX", "Attribution", "attribute", "coalitions", "fold_contributions"]

PLAYERS_MAX: Final = 4
"""Largest number of active seeds for exact attribution: 2^4 = 16 validation passes."""

Coalition = tuple[int, ...]


class Attribution(NamedTuple):
    """Contribution of every active seed to its host's accuracy; NaN where a slot holds no active seed."""

    nothing: NDArray[np.float64]
    """[N]: accuracy with all seeds off."""
    everything: NDArray[np.float64]
    """[N]: accuracy with all active seeds on."""
    leave_one_out: NDArray[np.float64]
    """[N, S]"""
    shapley: NDArray[np.float64]
    """[N, S]: mean gain over all orders of arrival (Shapley 1953); sums to ``everything - nothing``."""
    pairs: NDArray[np.float64]
    """[N, S, S]: gain of two seeds together minus their gains alone, all others off; diagonal NaN."""


def fold_contributions(
    slots: Slots,
    accuracy: NDArray[np.float64],
    without: NDArray[np.float64],
    error: NDArray[np.float64],
    live: NDArray[np.bool_],
    newest_weight: float,
) -> None:
    """Update the exponential moving averages of contribution and standard error, in place.

    The averages are bias-corrected: their weights sum to 1 from the first measurement on. Epochs share their
    validation samples, so errors count as fully correlated: the error of the average is the average of the errors.
    Where ``without`` is NaN, an average stays and its age grows by one epoch; a slot never measured stays NaN.

    Args:
        slots: all slots of N hosts.
        accuracy: float64 [N], validation accuracy with all seeds.
        without: float64 [N, S], accuracy without the slot's seed.
        error: float64 [N, S], standard error of the difference.
        live: bool [N], hosts that ran this epoch.
        newest_weight: weight of this measurement, in (0, 1].
    """
    measured = np.isfinite(without) & np.isfinite(accuracy)[:, None] & live[:, None]
    value = np.where(measured, accuracy[:, None] - without, 0.0)
    weight = slots["contribution_weight"]
    weight[measured] = ((1.0 - newest_weight) * weight + newest_weight)[measured]
    for name, newest in (("contribution", value), ("contribution_error", error)):
        total = slots[f"{name}_sum"]
        total[measured] = ((1.0 - newest_weight) * total + newest_weight * newest)[measured]
        slots[name][measured] = total[measured] / weight[measured]
    slots["contribution_epochs"][~measured & (slots["contribution_epochs"] >= 0) & live[:, None]] += 1
    slots["contribution_epochs"][measured] = 0


def coalitions(seeds: int) -> list[Coalition]:
    """Return every subset of ``seeds`` players, the empty one first.

    Raises:
        ConfigError: for more than ``PLAYERS_MAX`` seeds.
    """
    if seeds > PLAYERS_MAX:
        raise ConfigError(f"exact attribution needs hosts with at most {PLAYERS_MAX} active seeds, found {seeds}")
    return [chosen for size in range(seeds + 1) for chosen in combinations(range(seeds), size)]


def attribute(worth: Mapping[Coalition, NDArray[np.float64]], place: NDArray[np.int64]) -> Attribution:
    """Compute exact attributions from the accuracy of every coalition.

    Args:
        worth: accuracy float64 [N] by coalition of the m players.
        place: int64 [N, S], the player that a slot's seed is in its host; -1 without an active seed. A player that a
            host does not have changes nothing there.
    """
    players = max(map(len, worth))
    everyone = tuple(range(players))
    hosts = np.arange(len(place))
    shapley, without = np.zeros((2, len(place), players + 1))
    pairs = np.zeros((len(place), players + 1, players + 1))
    for player in everyone:
        others = [member for member in everyone if member != player]
        without[:, player] = worth[everyone] - worth[tuple(others)]
        for size in range(players):
            share = factorial(size) * factorial(players - size - 1) / factorial(players)
            for chosen in combinations(others, size):
                shapley[:, player] += share * (worth[tuple(sorted((*chosen, player)))] - worth[chosen])
        for other in others:
            joint = worth[tuple(sorted((player, other)))] + worth[()]
            pairs[:, player, other] = joint - worth[(player,)] - worth[(other,)]
    is_active = place >= 0
    both = is_active[:, :, None] & is_active[:, None, :] & ~np.eye(place.shape[1], dtype=bool)
    return Attribution(
        nothing=worth[()],
        everything=worth[everyone],
        leave_one_out=np.where(is_active, without[hosts[:, None], place], np.nan),
        shapley=np.where(is_active, shapley[hosts[:, None], place], np.nan),
        pairs=np.where(both, pairs[hosts[:, None, None], place[:, :, None], place[:, None, :]], np.nan),
    )
