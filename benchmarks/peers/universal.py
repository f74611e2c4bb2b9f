"""One host with seeds of one universal form, masked, as plain functions that can be vmapped and differentiated.

The seed is a residual layer that a gate, a norm's exponent and dropout's factor join, so one function fits every host
whatever it grows. Shapes, of one host: B batch, D width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from simic.hosts.batched.sizes import BLOCKS, SLOTS, WIDTH

__all__ = ["Plan", "Tensors", "delta", "host_loss", "run", "run_from", "seed_loss"]

Tensors = dict[str, Tensor]


class Plan(NamedTuple):
    """Parts of the universal seed that a slot runs in an epoch: those that a seed of some host in that slot needs."""

    units: int
    has_normed: bool
    has_affine: bool
    has_gate: bool
    has_norm: bool


def delta(plan: Plan, seed: Tensors, h: Tensor) -> Tensor:
    """The universal seed of one host on h [B, D]."""
    x, out = h, seed["up_bias"].expand_as(h)
    if plan.has_normed:
        normal = functional.layer_norm(h, (WIDTH,))
        normal = normal * (1.0 + seed["scale"]) + seed["shift"] if plan.has_affine else normal
        x = torch.where(seed["is_normed"], normal, h)
    if plan.units:
        out = (x @ seed["down"] + seed["down_bias"]).relu() @ seed["up"] + out
    if not (plan.has_gate or plan.has_norm or "noise" in seed):
        return out
    factor: Tensor | float = 0.0
    if plan.has_gate:
        factor = (torch.sigmoid(2.0 * out) * 2.0 - 1.0) * seed["is_gate"]
        out = out * (1.0 - seed["is_gate"])
    if plan.has_norm:
        log_size = (h.square().mean(dim=1, keepdim=True) + 1e-6).log() * 0.5
        factor = factor + ((log_size * (seed["exponent"] * -0.35)).exp() - 1.0)
    if "noise" in seed:
        factor = factor + seed["noise"]
    return h * factor + out


def run_from(
    slot: int, plans: dict[int, Plan], weights: Tensors, active: dict[int, Tensors], x: Tensor, gains: Tensors
) -> tuple[Tensor, list[Tensor]]:
    """One host's logits [B, 10] from the state x [B, D] in front of a slot; also the states there and further on."""
    states = []
    for index in range(slot, SLOTS):
        states.append(x)
        if index in active:
            x = x + active[index]["alpha"] * delta(plans[index], active[index], x)
        if index < BLOCKS:
            x = x + (x @ weights[f"down{index}"]).relu() @ weights[f"up{index}"]
            if f"gain{index}" in gains:
                x = x * gains[f"gain{index}"]
    return x @ weights["head"].T, states


def run(
    plans: dict[int, Plan], weights: Tensors, active: dict[int, Tensors], batch: Tensors
) -> tuple[Tensor, list[Tensor]]:
    """Likewise from the inputs [B, 34]."""
    x = torch.maximum(batch["inputs"] @ weights["stem"], batch["floor"])
    return run_from(0, plans, weights, active, x, batch)


def host_loss(
    plans: dict[int, Plan], learning: tuple[Tensors, dict[int, Tensors]], active: dict[int, Tensors], batch: Tensors
) -> tuple[Tensor, tuple[Tensor, list[Tensor]]]:
    """One host's loss of its weights and of the seeds it feels; also that loss and the states, detached."""
    weights, seeds = learning
    logits, states = run(plans, weights, {slot: {**active[slot], **seeds[slot]} for slot in active}, batch)
    loss = functional.cross_entropy(logits, batch["labels"])
    return loss, (loss.detach(), [state.detach() for state in states])


def seed_loss(
    slot: int, plans: dict[int, Plan], seed: Tensors, weights: Tensors, active: dict[int, Tensors], x: Tensor,
    batch: Tensors,
) -> Tensor:  # fmt: skip
    """One host's loss with a seed fully blended in, of that seed alone."""
    logits, _ = run_from(slot, plans, weights, {**active, slot: {**active[slot], **seed}}, x, batch)
    return functional.cross_entropy(logits, batch["labels"])
