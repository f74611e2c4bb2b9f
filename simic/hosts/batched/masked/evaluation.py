"""Evaluation of all hosts in fixed shapes: the measurements of ``batched.evaluation``.

Every host has a leave-one-out row per slot, with or without an active seed, because a captured CUDA graph cannot drop
rows. Side rows share the layers before their slot with their host.
Shapes: N hosts, S slots, L layers, B samples (padded), D features, C classes.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

from simic.hosts.batched.evaluation import SMALL, EvaluationSet, dimension_of, hits_of, largest_share, rows_of
from simic.hosts.batched.masked.forward import ForwardResult, SeedTensors, StepInputs, column, run
from simic.hosts.batched.masked.training import Buffers

__all__ = ["evaluate", "measurement_width"]


def evaluate(buffers: Buffers, data: EvaluationSet, out: Tensor, *, leave_one_out: bool) -> None:
    """Write the columns of a ``Measurement`` to ``out`` float64 [N, measurement_width]."""
    valid, seed_tensors, slots = data.valid, buffers.seed_tensors, len(buffers.options)
    with torch.no_grad():
        shown = StepInputs(data.inputs, data.gains, [None] * slots)
        seeds = buffers.seeds.parameters.unbind(dim=1)
        result = run(
            buffers.trunk, buffers.weights.parts, seeds, buffers.options, seed_tensors, shown, has_side=leave_one_out
        )
        hits = hits_of(result.logits, data.labels)[:, :valid].double()
        likelihood = result.logits.log_softmax(dim=1).gather(1, data.labels[:, None])[:, 0, :valid]
        without, error = torch.full((2, *seed_tensors.alpha.shape), torch.nan, dtype=out.dtype, device=out.device)
        if result.side is not None:
            others = hits_of(result.side, data.labels.repeat(slots, 1))[:, :valid].double()
            paired = others.view(slots, -1, valid).transpose(0, 1)
            without = paired.mean(dim=2)
            error = (hits[:, None] - paired).std(dim=2, correction=0) / sqrt(valid)
        once = [-likelihood.double().mean(dim=1), hits.mean(dim=1), largest_share(result.logits[:, :, :valid])]
        outputs = (*result.states, result.logits.transpose(1, 2))
        spread = [_spread(x, valid) for x in outputs]
        dimension = [dimension_of(rows_of(x[:, :valid])) for x in outputs]
        perhaps = torch.cat([without, error, torch.stack(_risks(result, seed_tensors, valid), dim=1)], dim=1)
        is_absent = ~seed_tensors.is_active.repeat(1, 3)
        out.copy_(
            torch.cat(
                [torch.stack([*once, *spread, *dimension], dim=1), perhaps.masked_fill(is_absent, torch.nan)], dim=1
            )
        )


def measurement_width(layers: int, slots: int) -> int:
    """Return the number of columns: loss, accuracy, share, two of a layer [L] each, and three of a seed [S] each."""
    return 3 + 2 * layers + 3 * slots


def _spread(x: Tensor, valid: int) -> Tensor:
    """Return the standard deviation over samples of ln |x|, [N] from [N, B, *space, D]."""
    sizes: Tensor = (torch.linalg.vector_norm(x.flatten(2), dim=2) + SMALL).log()[:, :valid]
    return sizes.double().std(dim=1, correction=0)


def _risks(result: ForwardResult, seed_tensors: SeedTensors, valid: int) -> list[Tensor]:
    """Return |alpha change| / |h| per slot, at most 1, [N] each; NaN where a norm overflows float32."""
    risks = []
    for slot, (h, change) in enumerate(zip(result.states, result.changes, strict=True)):
        above, below = (
            torch.linalg.vector_norm(x.flatten(2), dim=2)[:, :valid].double().square().sum(dim=1).sqrt()
            for x in (change * column(seed_tensors.alpha[:, slot], h.dim()), h)
        )
        risks.append((above / below.clamp(min=SMALL)).clamp(max=1.0))
    return risks
