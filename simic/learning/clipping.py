"""Gradients are clipped per group, and their norms are reported before and after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["GRAD_NORM", "clip_by_group"]

GRAD_NORM = "grad_norm_"
"""Beginning of the names of norms before the clip; they must be finite."""


def clip_by_group(groups: Iterable[Mapping[str, Any]], max_norm: float) -> dict[str, Tensor]:
    """Clip the gradients of each named group to a norm of at most ``max_norm``; groups without gradients are left out.

    Returns:
        Of each group [] on the device: ``grad_norm_<group>`` before, ``clipped_grad_norm_<group>`` after the clip, as
        measured, and ``clipped_<group>``, 1 if the clip changed the gradients and 0 otherwise. The mean of the last one
        over updates is the share of clipped updates.
    """
    metrics: dict[str, Tensor] = {}
    for group in groups:
        touched = [parameter for parameter in group["params"] if parameter.grad is not None]
        if not touched:
            continue
        before, name = nn.utils.clip_grad_norm_(touched, max_norm), group["name"]
        metrics[f"{GRAD_NORM}{name}"] = before
        metrics[f"clipped_{GRAD_NORM}{name}"] = nn.utils.get_total_norm([parameter.grad for parameter in touched])
        metrics[f"clipped_{name}"] = (before > max_norm).to(torch.float32)
    return metrics
