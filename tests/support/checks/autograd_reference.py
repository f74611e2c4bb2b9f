"""The backward pass of stacked hosts as automatic differentiation finds it: slow, but nobody can get it wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from simic.hosts.batched.seeds import PackedSeeds
from simic.hosts.batched.trunk import StepBatch, Trunk
from simic.hosts.batched.weights import HostWeights

__all__ = ["differentiate"]


def differentiate(
    trunk: Trunk, parts: Sequence[Tensor], packed: PackedSeeds, batch: StepBatch, out: HostWeights
) -> tuple[Tensor, list[Tensor]]:
    """``Trunk.backpropagate`` of any trunk by automatic differentiation."""
    layout, hosts = packed.layout, packed.layout.counts[0]
    leaves = [part[:hosts].detach().requires_grad_() for part in parts]
    branches = [part[hosts:] for part in parts]

    def through(layer: Callable[[Sequence[Tensor], Tensor], Tensor], x: Tensor) -> Tensor:
        # Apart, because nobody wants the gradients of the parts from extra rows.
        if len(x) == hosts:
            return layer(leaves, x)
        own, extra = torch.split(x, [hosts, len(x) - hosts])
        return torch.cat([layer(leaves, own), layer(branches, extra)])

    with torch.enable_grad():
        x = trunk.stem(leaves, batch.inputs)
        for slot, slot_seeds in enumerate(packed.by_slot):
            if slot:
                x = through(partial(trunk.block, slot - 1), x)
                gain = batch.gains[slot - 1]
                if gain is not None:
                    factor = layout.per_row(gain, slot)
                    x = x * factor.view(*factor.shape[:2], *[1] * (x.dim() - 2))
            if len(layout.starts[slot]):
                x = torch.cat([x, x.detach().index_select(0, layout.starts[slot])])
            if slot_seeds is not None:
                # The targets already hold what the sources do, but where a row branches off they hold a detached copy.
                h = x.index_select(0, slot_seeds.target)
                x = x.index_copy(0, slot_seeds.target, h + slot_seeds.change(h, batch.noise[slot]))
        logits = through(trunk.logits, x)
        likelihood = (logits.log_softmax(dim=1) * layout.per_row(batch.targets, len(packed.by_slot))).sum()
        loss = likelihood * (-1.0 / batch.targets.shape[2])
    seeds = [group.parameters for _, group in packed.groups() if group.parameters.requires_grad]
    gradients = torch.autograd.grad(loss, [*leaves, *seeds])
    for mine, theirs in zip(out.parts, gradients, strict=False):
        mine.copy_(theirs)
    return logits.detach(), list(gradients[len(leaves) :])
