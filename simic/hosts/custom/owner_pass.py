"""The latest pass of an owner in training mode, and whether a loss of it can be counted. Shapes: B batch, C classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from simic.contracts.errors import ConfigError
from simic.hosts.custom.isolated import KeptPass
from simic.hosts.custom.tasks import Task

__all__ = ["OwnerPass"]


class OwnerPass:
    """What is known of a pass until its loss is computed."""

    def __init__(self, task: Task, slots: int, to_logits: Callable[[Any], Tensor] | None, who: str) -> None:
        """Take what the logits are for, the number of slots, and what takes logits out of an output that is no tensor.

        ``who`` names the host in messages.
        """
        self.kept: KeptPass | None = None
        self.met = 0
        """Layers with slots that have run."""
        self._output: Any = None
        self._task, self._slots, self._to_logits, self._who = task, slots, to_logits, who

    def begin(self, kept: KeptPass) -> None:
        """Forget an earlier pass."""
        self.kept, self.met, self._output = kept, 0, None

    def forget(self) -> None:
        """Keep nothing of the pass."""
        self.kept = self._output = None

    def end(self, output: Any) -> None:
        """Note what the module gave, until its loss is computed."""
        self._output = output

    def check(self, logits: Tensor, labels: Tensor) -> None:
        """Raise ConfigError unless the pass gave these logits, which fit the labels."""
        if self.kept is None:
            raise ConfigError(
                f"{self._who}: expected logits of a pass of the module in training mode, found none; call "
                "model.train() and compute the loss once for each pass"
            )
        if self.met < self._slots:
            raise ConfigError(
                f"{self._who}: expected all {self._slots} layers with slots in each pass, found {self.met};"
                " call torch.compiler.reset() on a compiled model; a layer that some passes skip cannot have a slot"
            )
        if (wanted := self._task.fault(logits, labels)) is not None:
            found = f"{tuple(logits.shape)} and {labels.dtype} {tuple(labels.shape)}"
            raise ConfigError(f"{self._who}: expected {wanted}, found {found}")
        shape = self._shape()
        if shape is not None and shape != logits.shape:
            raise ConfigError(
                f"{self._who}: expected logits {tuple(shape)}, as the pass of the module gave them, found "
                f"{tuple(logits.shape)}; a seed learns in passes of its own, whose output nothing of yours changes: "
                "process the inputs before the pass, give logits=, or wrap the module in one that does it"
            )

    def _shape(self) -> torch.Size | None:
        """Return the shape of the logits of the pass, or None if it is not known."""
        output, self._output = self._output, None
        if not isinstance(output, Tensor) and self._to_logits is not None:
            with torch.no_grad():
                output = self._to_logits(output)
        return output.shape if isinstance(output, Tensor) else None
