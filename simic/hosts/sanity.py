"""The seeds at birth, and the states, on which a blueprint is judged before it may grow anywhere."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from simic.hosts import counter_rng
from simic.hosts.counter_rng import Purpose
from simic.hosts.protocols import Blueprint, Site

__all__ = ["newborns"]

_SAMPLES = 32


def newborns(blueprint: Blueprint, site: Site) -> tuple[Tensor, Tensor]:
    """Parameters [2, P] of two seeds at birth and standard normal states [2, 32, *space, D] that they meet."""
    shape = (2, _SAMPLES, *site.space, site.width)
    parameters, values = blueprint.parameters(site), int(np.prod(shape[1:]))
    draws = torch.from_numpy(counter_rng.normals(counter_rng.streams([0, 1], Purpose.SANITY), max(parameters, values)))
    return blueprint.birth(draws[:, :parameters], site), draws[:, :values].reshape(shape)
