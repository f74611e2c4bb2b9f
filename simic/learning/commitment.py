"""Does the policy still grow and keep anything? The first thing that off-policy learning on one log unlearns.

Shapes: M valid steps, B sequences.
"""

from __future__ import annotations

import torch
from torch import Tensor

from simic.contracts.actions import Op
from simic.contracts.batches import OP_INDEX
from simic.controllers.network import NetworkOutput
from simic.replay.batch import SequenceBatch

__all__ = ["commitment"]


@torch.no_grad()
def commitment(output: NetworkOutput, batch: SequenceBatch) -> dict[str, Tensor]:
    """Probabilities, under the policy without its uniform share, of growing and of keeping what has grown.

    ``germinate_rate`` and ``fossilize_rate``: along an episode of the log, the probability of choosing the operation
    at least once, averaged over the episodes in which it was ever legal (0 if there is none). ``commit_rate`` is their
    product: seeds kept per episode, as far as the log's own states can tell. ``advance_mean`` is per legal step,
    ``fossilize_legal`` the share of episodes in which a seed could have been kept.
    """
    logits = output.op.masked_fill(~batch.masks.op, -torch.inf)
    probabilities = logits.softmax(dim=1)
    germinate, _ = _at_least_once(probabilities, batch, Op.GERMINATE)
    fossilize, fossilize_legal = _at_least_once(probabilities, batch, Op.FOSSILIZE)
    advance = OP_INDEX[Op.ADVANCE]
    legal = batch.masks.op[:, advance]
    return {
        "commit_rate": germinate * fossilize,
        "germinate_rate": germinate,
        "fossilize_rate": fossilize,
        "fossilize_legal": fossilize_legal,
        "advance_mean": (probabilities[:, advance] * legal).sum() / legal.sum().clamp(min=1),
    }


def _at_least_once(probabilities: Tensor, batch: SequenceBatch, op: Op) -> tuple[Tensor, Tensor]:
    """The mean over the episodes in which ``op`` was ever legal, and their share."""
    column = OP_INDEX[op]
    never = batch.to_time_major(torch.log1p(-probabilities[:, column].clamp(max=1.0 - 1e-6))).sum(0).exp()
    ever_legal = batch.to_time_major(batch.masks.op[:, column].to(never.dtype)).amax(0)
    return (1.0 - never).sum() / ever_legal.sum().clamp(min=1.0), ever_legal.mean()
