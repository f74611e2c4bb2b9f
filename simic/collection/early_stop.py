"""Which hosts of a collection are hopeless: a pure decision from the accuracies of their epochs.

Shapes: N hosts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simic.contracts.settings.run import EpisodeStopConfig
from simic.hosts.rollout import Step

__all__ = ["BELOW_ITS_BEST", "HopelessHosts"]

BELOW_ITS_BEST = "below_its_best"
"""Reason in a receipt: validation accuracy stayed far below its best of the episode."""


class HopelessHosts:
    """Follows the steps of N hosts and says after each which ones are hopeless. Each host is judged by itself alone."""

    def __init__(self, hosts: int, config: EpisodeStopConfig) -> None:
        """Begin without a measurement; ``config.fall`` must not be None."""
        if config.fall is None:
            raise ValueError("collect.stop.fall is null, so no episode ends early")
        self._fall, self._epochs = config.fall, config.epochs
        self._best: NDArray[np.float32] = np.full(hosts, -np.inf, dtype=np.float32)
        self._below: NDArray[np.int64] = np.zeros(hosts, dtype=np.int64)

    def after(self, step: Step) -> NDArray[np.bool_]:
        """Return bool [N]: hosts that ran this step, go on after it, and have been below for long enough."""
        self._best = np.fmax(self._best, step.outcome.validation_accuracy_before)
        accuracy = step.after.system["validation_accuracy"]
        is_below = self._best - accuracy >= np.float32(self._fall)
        self._below = np.where(is_below, self._below + 1, 0)
        self._best = np.fmax(self._best, accuracy)
        return step.live & ~step.outcome.terminated & (self._below >= self._epochs)
