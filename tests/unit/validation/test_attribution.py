"""The record of an attribution against the formulas of Shapley (1953), written out."""

from __future__ import annotations

from itertools import combinations, permutations
from statistics import fmean

import numpy as np
import pytest
from support.builders.episodes import EMPTY, slot

from simic.contracts.lifecycle import SeedStage
from simic.hosts.counterfactual import attribute, coalitions
from simic.validation.attribution import attribution_record

SLOTS = [slot(SeedStage.BLENDING, "norm", 0.4), EMPTY, slot(SeedStage.HOLDING, "gate", 1.0), slot(SeedStage.FOSSILIZED)]
PLACE = {0: 0, 2: 1, 3: 2}
"""Player of each slot."""


def test_seeds_and_pairs_are_those_of_the_formulas() -> None:
    rng = np.random.default_rng(5)
    worth = {frozenset(chosen): float(rng.uniform(0.2, 0.9)) for chosen in coalitions(3)}
    columns = {chosen: np.array([0.1, worth[frozenset(chosen)]]) for chosen in coalitions(3)}
    place = np.array([[-1, -1, -1, -1], [0, -1, 1, 2]])
    record = attribution_record(attribute(columns, place), 1, SLOTS)
    everyone = frozenset(range(3))
    assert (record.nothing, record.everything) == (worth[frozenset()], worth[everyone])
    assert [(seed.slot, seed.blueprint) for seed in record.seeds] == [(0, "norm"), (2, "gate"), (3, "gate")]
    for seed in record.seeds:
        player = PLACE[seed.slot]
        gains = []
        for order in permutations(range(3)):
            before = frozenset(order[: order.index(player)])
            gains.append(worth[before | {player}] - worth[before])
        assert seed.shapley == pytest.approx(fmean(gains))
        assert seed.leave_one_out == pytest.approx(worth[everyone] - worth[everyone - {player}])
    assert [pair.slots for pair in record.pairs] == [(0, 2), (0, 3), (2, 3)]
    for pair, (one, other) in zip(record.pairs, combinations(range(3), 2), strict=True):
        alone = [worth[frozenset({player})] - worth[frozenset()] for player in (one, other)]
        assert pair.interaction == pytest.approx(worth[frozenset({one, other})] - worth[frozenset()] - sum(alone))


def test_a_host_without_active_seeds_has_no_pairs() -> None:
    worth = {chosen: np.array([0.1, 0.2]) for chosen in coalitions(2)}
    record = attribution_record(attribute(worth, np.array([[-1, -1], [0, 1]])), 0, [EMPTY, EMPTY])
    assert (record.seeds, record.pairs, record.nothing) == ([], [], 0.1)
