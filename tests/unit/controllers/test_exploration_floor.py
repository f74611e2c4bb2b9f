"""Exploration must not put a ceiling on what a policy can achieve."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from simic.contracts.actions import HEAD_SIZES, HEADS, OPS, Head, Op
from simic.contracts.batches import HEAD_INDEX, OP_INDEX, Decisions, Masks, Observations
from simic.contracts.config import NetworkConfig, WorldConfig
from simic.contracts.splits import Split
from simic.controllers import heads
from simic.controllers.choice import certain
from simic.controllers.network import NetworkOutput
from simic.controllers.wait import WaitController
from simic.hosts.ensemble import Ensemble
from simic.hosts.keys import draw_keys, identify
from simic.hosts.rollout import rollout

WORLD = WorldConfig(horizon=10)
CERTAIN = 60.0
"""A logit beside zeros: as sure as float32 allows."""


def expert(observations: Observations, masks: Masks) -> NDArray[np.int64]:
    """Keep what can be kept, advance what can advance, else grow a gate while there is time: actions [N, heads]."""
    rows = np.zeros((len(observations), len(HEADS)), dtype=np.int64)
    rows[:, HEAD_INDEX[Head.BLUEPRINT]] = observations.blueprints.index("gate")
    rows[:, HEAD_INDEX[Head.ALPHA_TARGET]] = 2
    for host in range(len(observations)):
        own = slice(observations.slot_ptr[host], observations.slot_ptr[host + 1])
        has_time = observations.system["epoch"][host] <= WORLD.horizon - 5
        for op in (Op.FOSSILIZE, Op.ADVANCE, *([Op.GERMINATE] if has_time else [])):
            slots = np.flatnonzero(masks.slot[own, OP_INDEX[op]])
            if len(slots):
                rows[host, :2] = OP_INDEX[op], slots[0]
                break
    return rows


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


def test_l5_an_expert_keeps_its_return_under_the_shipped_exploration() -> None:
    """L5: a perfect policy drawn from through the exact sampler keeps at least 95 % of its gain over never growing."""
    keys = [key for key in draw_keys("benchmark", Split.TRAIN, 600, 50_000) if key % 5 == 1]
    hosts = identify("benchmark", keys)
    assert {host.family for host in hosts} == {"select"}

    def mixed(exploration: float) -> tuple[float, float]:
        def decide(observations: Observations, masks: Masks, uniforms: NDArray[np.float64]) -> Decisions:
            rows = expert(observations, masks)
            if exploration == 0.0:
                return certain(rows.astype(np.int16))
            output = as_policy(observations, rows)
            pointer = torch.tensor(observations.slot_ptr)
            return heads.sample(output, pointer, heads.MaskTensors.of(masks), uniforms, exploration)

        return grow(decide)

    def grow(decide: object) -> tuple[float, float]:
        """Mean committed validation accuracy, and the share of hosts that kept a seed."""
        *_, last = rollout(Ensemble(hosts, WORLD), decide, seed=3)  # type: ignore[arg-type]
        outcome = last.outcome
        kept = outcome.committed_parameters > 0
        return float(outcome.committed_validation_accuracy.mean()), float(kept.mean())

    nothing, _ = grow(WaitController().decide)
    pure, pure_kept = mixed(0.0)
    shipped, shipped_kept = mixed(NetworkConfig().exploration)
    harsh, _ = mixed(0.15)
    assert pure_kept >= 0.95
    assert pure - nothing > 0.03
    assert shipped_kept >= 0.95 * pure_kept
    assert shipped - nothing >= 0.95 * (pure - nothing)
    assert harsh - nothing < 0.95 * (pure - nothing), "the measurement cannot tell floors apart"
