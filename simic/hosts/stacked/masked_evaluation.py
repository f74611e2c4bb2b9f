"""Validation of all hosts in fixed shapes: the figures of ``evaluation``, with a side row behind every slot.

Every host has a leave-one-out row for every slot, whether or not it feels a seed there: which rows could be dropped
changes with the lifecycle, and a recording cannot. Side rows share with their host what lies in front of their slot.
Shapes: N hosts, S slots, L layers, B samples (padded), D features, C classes.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

from simic.hosts.stacked.evaluation import SMALL, EvaluationSet, hits_of, largest_share
from simic.hosts.stacked.masked_pass import Cast, Flow, Shown, column, run
from simic.hosts.stacked.masked_training import Ground

__all__ = ["evaluate", "measurement_width"]


def evaluate(ground: Ground, data: EvaluationSet, out: Tensor, *, leave_one_out: bool) -> None:
    """``out`` float64 [N, measurement_width] becomes a ``Measurement``, column by column."""
    valid, cast, slots = data.valid, ground.cast, len(ground.options)
    with torch.no_grad():
        shown = Shown(data.inputs, data.gains, [None] * slots)
        seeds = ground.seeds.parameters.unbind(dim=1)
        flow = run(ground.trunk, ground.weights.parts, seeds, ground.options, cast, shown, has_side=leave_one_out)
        hits = hits_of(flow.logits, data.labels)[:, :valid].double()
        likelihood = flow.logits.log_softmax(dim=1).gather(1, data.labels[:, None])[:, 0, :valid]
        without, error = torch.full((2, *cast.alpha.shape), torch.nan, dtype=out.dtype, device=out.device)
        if flow.side is not None:
            others = hits_of(flow.side, data.labels.repeat(slots, 1))[:, :valid].double()
            paired = others.view(slots, -1, valid).transpose(0, 1)
            without = paired.mean(dim=2)
            error = (hits[:, None] - paired).std(dim=2, correction=0) / sqrt(valid)
        once = [-likelihood.double().mean(dim=1), hits.mean(dim=1), largest_share(flow.logits[:, :, :valid])]
        spread = [_spread(x, valid) for x in (*flow.states, flow.logits.transpose(1, 2))]
        perhaps = torch.cat([without, error, torch.stack(_risks(flow, cast, valid), dim=1)], dim=1)
        is_absent = ~cast.is_felt.repeat(1, 3)
        out.copy_(torch.cat([torch.stack([*once, *spread], dim=1), perhaps.masked_fill(is_absent, torch.nan)], dim=1))


def measurement_width(layers: int, slots: int) -> int:
    """Columns: loss, accuracy, largest share, spread [L], accuracy without [S], its error [S], risk [S]."""
    return 3 + layers + 3 * slots


def _spread(x: Tensor, valid: int) -> Tensor:
    """Deviation over samples of ln |x|, [N] from [N, B, *space, D]."""
    sizes: Tensor = (torch.linalg.vector_norm(x.flatten(2), dim=2) + SMALL).log()[:, :valid]
    return sizes.double().std(dim=1, correction=0)


def _risks(flow: Flow, cast: Cast, valid: int) -> list[Tensor]:
    """Per slot |alpha change| / |h|, at most 1; NaN where a norm overflows float32; [N]."""
    risks = []
    for slot, (h, change) in enumerate(zip(flow.states, flow.changes, strict=True)):
        above, below = (
            torch.linalg.vector_norm(x.flatten(2), dim=2)[:, :valid].double().square().sum(dim=1).sqrt()
            for x in (change * column(cast.alpha[:, slot], h.dim()), h)
        )
        risks.append((above / below.clamp(min=SMALL)).clamp(max=1.0))
    return risks
