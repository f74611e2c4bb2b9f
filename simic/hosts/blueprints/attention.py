"""``attention``: every place of a sequence reads all others."""

from __future__ import annotations

import torch
from torch import Tensor, cat, split, zeros_like

from simic.hosts.batched.conv import product
from simic.hosts.blueprints._layers import per_seed, project
from simic.hosts.interfaces import Blueprint, Site

__all__ = ["BLUEPRINT", "Attention"]


def _units(width: int) -> int:
    return max(4, width // 2)


class Attention(Blueprint):
    """delta = softmax(Q K' / sqrt(U) - s |i - j|) V W with one head of U units, for sequences.

    Scaled dot-product attention (Vaswani et al. 2017, arXiv:1706.03762, section 3.2). A penalty linear in the distance
    (Press et al. 2022, arXiv:2108.12409) tells places apart; its slopes s are learned, one towards the past and one
    towards the future. It is not causal: in a host that reads from left to right, earlier places see later ones. That
    is harmless where, as in the shipped hosts, the label lies outside of the sequence. Elsewhere a Grower leaves it
    out.
    """

    def suits(self, site: Site, /) -> bool:
        return len(site.space) == 1

    def parameters(self, site: Site, /) -> int:
        return sum(_sizes(site.width))

    def birth(self, normals: Tensor, site: Site, /) -> Tensor:
        """Return initial parameters: W and the slopes are zero, all others are random."""
        count = _sizes(site.width)[0]
        return cat([normals[:, :count] * site.width**-0.5, zeros_like(normals[:, count:])], dim=1)

    def delta(self, parameters: Tensor, h: Tensor, _noise: Tensor | None, /) -> Tensor:
        width, places = h.shape[-1], h.shape[2]
        units = _units(width)
        read, out, past, future = split(parameters, _sizes(width), dim=1)
        query, key, value = project(h, read.view(-1, width, 3 * units)).chunk(3, dim=3)
        scores = _per_sample(query, key.transpose(2, 3)) * units**-0.5
        order = torch.arange(places, device=h.device)
        ahead = order - order.unsqueeze(1)
        scores = scores - per_seed(past, h) * (-ahead).clamp(min=0) - per_seed(future, h) * ahead.clamp(min=0)
        return project(_per_sample(scores.softmax(dim=3), value), out.view(-1, units, width))


def _sizes(width: int) -> list[int]:
    """Return the numbers of parameters of Q, K and V together, of W, and of both slopes."""
    units = _units(width)
    return [3 * width * units, units * width, 1, 1]


def _per_sample(left: Tensor, right: Tensor) -> Tensor:
    """Return left @ right for every seed and sample, [n, B, i, k] and [n, B, k, j]."""
    return product(left.flatten(0, 1), right.flatten(0, 1)).view(*left.shape[:3], right.shape[3])


BLUEPRINT = Attention()
