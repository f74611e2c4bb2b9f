"""The KL between the policies before and after an update, on fixed states of the log. It changes nothing.

The network is in evaluation mode between updates, and its forward pass draws no random numbers, so a training with and
without the probe learns the same bits.
"""

from __future__ import annotations

import numpy as np
import torch

from simic.contracts.settings.safety import AnomalyConfig
from simic.controllers.heads import ActionDistribution
from simic.controllers.network import PolicyNetwork
from simic.replay.dataset import GraphDataset

__all__ = ["PolicyProbe"]


class PolicyProbe:
    """Measures updates whose number, counted from 1, is a multiple of ``config.kl_updates``."""

    def __init__(self, store: GraphDataset, network: PolicyNetwork, config: AnomalyConfig, exploration: float) -> None:
        """Choose ``config.kl_states`` evenly spaced steps of the log, with the actions that it took there."""
        steps = len(store.steps.rewards)
        rows = np.unique(np.linspace(0, steps - 1, min(steps, config.kl_states)).round().astype(np.int64))
        self._states, self._masks = store.states(rows)
        self._actions = store.steps_at(rows).actions
        self._network, self._exploration, self._every = network, exploration, config.kl_updates
        self._before: ActionDistribution | None = None

    def is_due(self, number: int) -> bool:
        """Return whether update ``number`` is measured."""
        return self._every > 0 and number % self._every == 0

    def prepare(self, number: int) -> None:
        """Note the policy ahead of update ``number``, if it is measured."""
        self._before = self._policy() if self.is_due(number) else None

    def measure(self) -> float | None:
        """Return KL(before || after) in nats per state, summed over the relevant heads; None unless it was prepared.

        Heads given the operation and the slot are independent, so their divergences add up; a head that the logged
        action does not use counts 0.
        """
        if self._before is None:
            return None
        return float(self._before.kl(self._policy(), self._actions).sum(1).mean())

    @torch.no_grad()
    def _policy(self) -> ActionDistribution:
        output = self._network.act(self._states)
        return ActionDistribution(output, self._states.slot_ptr, self._masks, self._exploration)
