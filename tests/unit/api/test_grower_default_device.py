"""A program may make its tensors on another device by default; a Grower in it works as without that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.builders.deciding_policies import SIGNER, sealed_decider
from support.builders.small_loops import Net, grow, train_epoch

import simic


def life(policy: str | Path) -> tuple[list[Any], dict[str, Any]]:
    """What each step found, and the weights of the finalised network."""
    with torch.device("cpu"):
        torch.manual_seed(0)
        model = Net()
    decider: Any = policy
    if isinstance(policy, Path):
        decider = simic.load_policy(policy, trusted_keys=[SIGNER.public_bytes.hex()])
    grower, optimizer = grow(model, policy=decider, lifecycle={"min_contribution": -1.0})
    found = []
    for _ in range(12):
        train_epoch(grower, optimizer)
        found.append(grower.step())
    return found, {name: value.tolist() for name, value in grower.finalize().state_dict().items()}


@pytest.mark.parametrize("is_learned", [True, False], ids=["policy", "explore"])
def test_a_grower_lives_alike_under_another_default_device(is_learned: bool, tmp_path: Path) -> None:
    policy = sealed_decider(tmp_path / "policy") if is_learned else "explore"
    expected = life(policy)
    torch.set_default_device("meta")  # whose tensors have no values, so that whatever reads one fails
    try:
        assert life(policy) == expected
    finally:
        torch.set_default_device(None)
    assert any(growth.action is not None and growth.action.blueprint is not None for growth in expected[0])
