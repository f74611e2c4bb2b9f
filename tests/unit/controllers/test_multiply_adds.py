"""Multiply-adds of a decision, against what PyTorch counts while the policy decides."""

from __future__ import annotations

import numpy as np
import pytest
from support.builders.karns import consulted
from support.builders.observations import make_scene
from torch.utils.flop_counter import FlopCounterMode
from unit.controllers.test_learned_controller import make_policy

from simic.contracts.settings.network import NetworkConfig
from simic.controllers.learned_controller import LearnedController


@pytest.mark.parametrize("consults", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
def test_the_count_is_that_of_pytorch_for_every_graph(layers: int, consults: bool) -> None:
    """The graphs have one to three slots and two to five layers."""
    policy = make_policy(config=NetworkConfig(hidden=16, layers=layers))
    controller = LearnedController(
        policy, policy_version=None, is_decisive=True, karn=consulted() if consults else None
    )
    scene = make_scene(5, 12)
    expected = []
    for row in range(12):
        rows = np.array([row])
        seen, legal = scene.observations.take(rows), scene.masks.take(rows, scene.observations.slot_ptr)
        with FlopCounterMode(display=False) as counter:
            controller.decide(seen, legal, scene.uniforms[rows])
        expected.append(counter.get_total_flops() // 2)
    assert len(set(expected)) > 3
    assert controller.multiply_adds(scene.observations).tolist() == expected
