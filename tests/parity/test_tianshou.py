"""Advantages and prioritised draws against tianshou, as ``record_tianshou.py`` recorded it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from simic.numerics.gae import gae
from simic.replay.live.prioritised import Prioritisation, PrioritisedSampler, SumTree, importance_weights

RECORD = json.loads(Path(__file__).with_name("tianshou.json").read_text(encoding="utf-8"))


def _row(name: str) -> torch.Tensor:
    """A recorded column as [T, 1]."""
    return torch.from_numpy(np.array(RECORD["gae"][name])).unsqueeze(1)


@pytest.mark.parametrize("lambda_", [0.0, 0.95, 1.0])
def test_advantages_and_returns_of_episodes_that_end_either_way(lambda_: float) -> None:
    found = RECORD["gae"]["found"][str(lambda_)]
    terminated, truncated = _row("terminated"), _row("truncated")
    assert terminated.any()
    assert truncated.any()
    gamma = torch.tensor(RECORD["gae"]["gamma"], dtype=torch.float64)
    ours = gae(
        rewards=_row("rewards"),
        discounts=torch.where(terminated, 0.0, gamma),
        values=_row("values"),
        next_values=_row("next_values"),
        is_cut=terminated | truncated,
        lambda_=lambda_,
    )
    np.testing.assert_allclose(ours.advantages[:, 0].numpy(), found["advantages"], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(ours.returns[:, 0].numpy(), found["returns"], rtol=1e-12, atol=1e-12)


def test_marks_fall_on_the_same_rows_with_the_same_weights() -> None:
    record: dict[str, Any] = RECORD["per"]
    magnitudes, expected = np.array(record["magnitudes"]), np.array(record["rows"])
    settings = Prioritisation(alpha=record["alpha"], beta=record["beta"], eps=record["eps"])
    sampler = PrioritisedSampler(len(magnitudes), seed=0, settings=settings)
    rows = np.arange(len(magnitudes))
    sampler.add(rows)
    sampler.update(rows, magnitudes)
    probabilities = sampler.probabilities()
    tree = SumTree(len(magnitudes))
    tree.set(rows, probabilities)
    np.testing.assert_array_equal(tree.find(np.array(record["shares"]) * tree.total), expected)
    weights = importance_weights(probabilities[expected], len(sampler), sampler.beta)
    np.testing.assert_allclose(weights, record["weights"], rtol=1e-6)
