"""Regret against a loop over the tried alternatives."""

from __future__ import annotations

import math

import torch

from simic.numerics.regret import regret_of

RETURNS = [[1.0, math.nan, 4.0], [-3.0, -2.0, math.nan], [math.nan, math.nan, 7.0]]


def test_regret_is_the_distance_to_the_best_tried_alternative_and_0_for_others() -> None:
    expected = []
    for row in RETURNS:
        best = max(one for one in row if not math.isnan(one))
        expected.append([0.0 if math.isnan(one) else best - one for one in row])
    assert regret_of(torch.tensor(RETURNS)).tolist() == expected
