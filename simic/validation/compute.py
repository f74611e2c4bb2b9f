"""What growing costs in relation to the host: seeds, decisions and probes, counted without a clock.

A host's training counts three multiply-adds for each of its parameters and samples: one forward, two backward. That is
what linear layers take. A convolution uses each of its parameters more often, so where a host has some, the share of
decisions is an upper bound. Shapes: N hosts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simic.validation.episodes import Effort, Episodes
from simic.validation.host_sizes import HostSizes

__all__ = ["compute_shares"]

_BACKWARD = 3
"""Multiply-adds of a forward and a backward pass, in forward passes."""


def compute_shares(episodes: Episodes, sizes: HostSizes, horizon: int) -> dict[str, NDArray[np.float64]]:
    """Return the fields of a ``FamilyTrial`` that say what growing cost, [N] each.

    All episodes that were grown on a host count; each but the first one also trains the host once more.
    """
    effort = Effort(*episodes.effort.T)
    training = _BACKWARD * sizes.samples * np.float64(horizon)
    probed = effort.left_out * sizes.validation + _BACKWARD * effort.probes * sizes.batch
    return {
        "extra_compute": effort.seed_epochs / (sizes.parameters * np.float64(horizon)) + (effort.episodes - 1),
        "decisions": effort.decisions.astype(np.float64),
        "decision_multiply_adds": effort.products / np.maximum(effort.decisions, 1),
        "controller_compute": effort.products / (training * sizes.parameters),
        "probe_compute": probed / training,
    }
