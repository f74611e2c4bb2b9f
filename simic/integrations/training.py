"""What the callbacks of all trainers share: a Grower that counts batches and ends an epoch once.

Shapes: B batch, C classes.
"""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor, nn

from simic.api.grower import Grower, Growth
from simic.contracts.errors import ConfigError, TransientError

__all__ = ["GrownTraining"]


class GrownTraining:
    """A Grower in a trainer, which comes when the trainer knows its model and optimiser."""

    grower: Grower | None = None
    """From the beginning of the training on."""
    growth: Growth | None = None
    """What the latest epoch found and decided."""
    _has_batches = False

    @property
    def network(self) -> nn.Module:
        """Return the model that grows; after the training it is a plain module.

        Raises:
            ConfigError: if no training has begun.
        """
        return self.known_grower().model

    def known_grower(self) -> Grower:
        """Return the Grower.

        Raises:
            ConfigError: if no training has begun.
        """
        if self.grower is None:
            raise ConfigError(
                "GrowerCallback: no training has begun with it; is it among the callbacks of the trainer?"
            )
        return self.grower

    def counted_loss(self, output: Any, labels: Tensor) -> Tensor:
        """Return the loss of a batch, which counts if it has gradients."""
        value = self.known_grower().loss(output, labels)
        self._has_batches |= value.requires_grad
        return value

    def forget_batches(self) -> None:
        """Count no batch of an earlier training."""
        self._has_batches = False

    def end_epoch(self) -> None:
        """Measure, decide and act, if batches came since the last time; where growing is over, make the model plain.

        So no checkpoint holds a network that is neither plain nor can be resumed.
        """
        if not self._has_batches:
            return
        self.forget_batches()
        grower = self.known_grower()
        try:
            grower.step()
        except TransientError as error:
            warnings.warn(f"field reports are written with those of the next epoch: {error}", stacklevel=2)
        self.growth = grower.growth
        if grower.is_finished:
            self.end()

    def end(self) -> None:
        """Make the model plain, also if epochs are left."""
        try:
            self.known_grower().finalize()
        except TransientError as error:
            warnings.warn(f"the last field reports are not written: {error}", stacklevel=2)
