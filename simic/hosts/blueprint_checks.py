"""Operators of blueprints, and the inputs on which a blueprint is checked at initialisation."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from simic.hosts import rng
from simic.hosts.interfaces import Blueprint, Operator, Site
from simic.hosts.rng import Purpose

__all__ = ["change_of", "initial_seeds_and_states"]


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
    shape = (2, _SAMPLES, *site.space, site.width)
    parameters, values = blueprint.parameters(site), int(np.prod(shape[1:]))
    draws = torch.from_numpy(rng.normals(rng.streams([0, 1], Purpose.SANITY), max(parameters, values)))
    return blueprint.birth(draws[:, :parameters], site), draws[:, :values].reshape(shape)
