"""Operators of blueprints, and the inputs on which a blueprint is checked at initialisation."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from simic.hosts import rng
from simic.hosts.interfaces import Blueprint, Operator, Site
from simic.hosts.rng import Purpose

__all__ = ["change_of", "initial_change", "initial_seeds_and_states"]


def change_of(operator: Operator, h: Tensor, delta: Tensor) -> Tensor:
    """Return the change that alpha scales, [n, B, *space, D], from state and delta; 0 where delta is 0."""
    if operator is Operator.MULTIPLY:
        return h * delta
    if operator is Operator.GATE:
        return h * (delta.sigmoid() * 2.0 - 1.0)
    return delta


_SAMPLES = 32


def initial_seeds_and_states(blueprint: Blueprint, site: Site) -> tuple[Tensor, Tensor]:
    """Return initial parameters [2, P] of two seeds and standard normal states [2, 32, *space, D]."""
    return _drawn(blueprint, site, (*site.space, site.width))


@torch.no_grad()
def initial_change(blueprint: Blueprint, site: Site) -> tuple[bool, float]:
    """Return whether initialised seeds keep all shapes, and the largest number by which they change anything."""
    if blueprint.is_widening:
        seeds, inputs = _drawn(blueprint, site, site.source)
        changes = [added for seed, x in zip(seeds, inputs, strict=True) for added in blueprint.additions(seed, x, site)]
        widths = [reader.width for _ in seeds for reader in site.readers]
        keeps_shape = [(len(added), added.shape[-1]) for added in changes] == [(_SAMPLES, width) for width in widths]
        return keeps_shape, max(float(added.abs().max()) for added in changes)
    parameters, h = initial_seeds_and_states(blueprint, site)
    delta = blueprint.delta(parameters, h, None)
    keeps_shape = delta.shape == h.shape
    change = change_of(blueprint.operator, h, delta) if keeps_shape else delta
    return keeps_shape, float(change.abs().max())


def _drawn(blueprint: Blueprint, site: Site, sample: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return initial parameters [2, P] of two seeds and standard normal numbers [2, 32, *sample]."""
    shape = (2, _SAMPLES, *sample)
    parameters, values = blueprint.parameters(site), int(np.prod(shape[1:]))
    draws = torch.from_numpy(rng.normals(rng.streams([0, 1], Purpose.SANITY), max(parameters, values)))
    return blueprint.birth(draws[:, :parameters], site), draws[:, :values].reshape(shape)
