"""Exploration must not put a ceiling on what a policy can achieve."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from simic.contracts.actions import HEAD_SIZES, OPS, Head
from simic.contracts.batches import HEAD_INDEX, Decisions, Masks, Observations
from simic.contracts.controllers import ControllerSpec
from simic.contracts.rewards import RewardConfig
from simic.contracts.settings.network import NetworkConfig
from simic.contracts.settings.run import WorldConfig
from simic.contracts.splits import Split
from simic.controllers import heads
from simic.controllers.factory import make
from simic.controllers.network import NetworkOutput
from simic.controllers.plugins.wait import WaitController
from simic.controllers.protocol import Controller
from simic.hosts.ensemble import Ensemble
from simic.hosts.host_sets import draw_keys, identify
from simic.hosts.rollout import Decide, rollout
from simic.validation.episodes import Scores, score

WORLD = WorldConfig()
CERTAIN = 60.0
"""A logit beside zeros: as sure as float32 allows."""


def as_policy(observations: Observations, rows: NDArray[np.int64]) -> NetworkOutput:
    """Network outputs of a policy that is sure of ``rows``."""
    hosts, slots = len(observations), int(observations.slot_ptr[-1])
    taken = observations.slot_ptr[:-1] + np.maximum(rows[:, 1], 0)

    def sure(size: int, head: Head) -> torch.Tensor:
        table = torch.zeros(slots, size)
        table[taken, rows[:, HEAD_INDEX[head]]] = CERTAIN
        return table

    op, pointer = torch.zeros(hosts, len(OPS)), torch.zeros(slots, len(OPS))
    op[np.arange(hosts), rows[:, 0]] = CERTAIN
    pointer[taken, rows[:, 0]] = CERTAIN
    return NetworkOutput(
        op=op,
        slot=pointer,
        blueprint=sure(len(observations.blueprints), Head.BLUEPRINT),
        tempo=sure(HEAD_SIZES[Head.TEMPO], Head.TEMPO),
        target=sure(HEAD_SIZES[Head.ALPHA_TARGET], Head.ALPHA_TARGET),
        speed=sure(HEAD_SIZES[Head.ALPHA_SPEED], Head.ALPHA_SPEED),
        curve=sure(HEAD_SIZES[Head.ALPHA_CURVE], Head.ALPHA_CURVE),
        value=torch.zeros(hosts),
    )


def sampled(expert: Controller, exploration: float) -> Decide:
    """The expert as a policy sure of what it does, drawn from through the sampler of learned controllers."""

    def decide(observations: Observations, masks: Masks, uniforms: NDArray[np.float64]) -> Decisions:
        rows = expert.decide(observations, masks, uniforms).actions.astype(np.int64)
        pointer = torch.tensor(observations.slot_ptr)
        output = as_policy(observations, np.maximum(rows, 0))
        return heads.ActionDistribution(output, pointer, heads.MaskTensors.of(masks), exploration).sample(uniforms)

    return decide


def test_l5_the_expert_keeps_its_return_under_the_shipped_exploration() -> None:
    """L5: drawn from through the exact sampler, the scripted expert keeps at least 95 % of what it gains."""
    hosts = identify("benchmark", draw_keys("benchmark", Split.TRAIN, 100, 50_000))
    expert = make(ControllerSpec(name="expert"), hosts)

    def grown(decide: Decide) -> Scores:
        return score(rollout(Ensemble(hosts, WORLD), decide, seed=3), len(hosts), WORLD, RewardConfig())

    nothing, pure, certain, shipped, harsh = map(
        grown,
        (
            WaitController().decide,
            expert.decide,
            sampled(expert, 0.0),
            sampled(expert, NetworkConfig().exploration),
            sampled(expert, 0.15),
        ),
    )
    gain = pure.returns.mean() - nothing.returns.mean()
    assert gain > 5.0
    assert (certain.returns == pure.returns).all(), "without exploration the sampler changes what the expert does"
    assert shipped.returns.mean() - nothing.returns.mean() >= 0.95 * gain
    assert (shipped.committed_parameters > 0).mean() >= 0.95 * (pure.committed_parameters > 0).mean()
    assert harsh.returns.mean() - nothing.returns.mean() < 0.95 * gain, "the measurement cannot tell floors apart"
