"""The passes of an owner in training mode, and whether a loss of one can be counted. Shapes: B batch, C classes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from simic.contracts.errors import ConfigError
from simic.hosts.custom.forward import LayerHook, check_output
from simic.hosts.custom.isolated import KeptPass
from simic.hosts.custom.tasks import Task

__all__ = ["OwnerPasses"]

MOST_WAITING = 4
"""Passes without a loss yet that are kept; each holds its logits."""


@dataclass(eq=False)
class _Waiting:
    """A pass whose loss was not computed yet."""

    kept: KeptPass
    met: int = 0
    """Layers with slots that have run."""
    logits: Tensor | None = None
    """Without their graph, which may be large; None if the pass gave none."""
    has_ended: bool = False
    fault: str | None = None
    """Why no seed can act in the pass."""


class OwnerPasses:
    """The owner's training passes that wait for their losses, at most ``MOST_WAITING``, told apart by their logits."""

    def __init__(self, task: Task, slots: int, to_logits: Callable[[Any], Tensor] | None, who: str) -> None:
        """Take what the logits are for, the number of slots, and what takes logits out of an output that is no tensor.

        ``who`` names the host in messages.
        """
        self._waiting: list[_Waiting] = []
        self._task, self._slots, self._to_logits, self._who = task, slots, to_logits, who

    def begin(self, kept: KeptPass) -> None:
        """Note that a pass begins; one before it that has not ended raised an error, and gets no loss."""
        ended = [waiting for waiting in self._waiting if waiting.has_ended]
        self._waiting = [*ended[1 - MOST_WAITING :], _Waiting(kept)]

    def meet(self, hook: LayerHook, output: Any) -> None:
        """Note that a layer with a slot has run, in a pass of the owner or another one, and what it gave."""
        if not self._waiting or (latest := self._waiting[-1]).has_ended:
            return
        latest.met += 1
        try:
            check_output(hook, output, len(output) if isinstance(output, Tensor) and output.dim() else 0)
        except ConfigError as error:  # told if a loss of this pass is counted, and not when a seed first acts
            latest.fault = str(error)

    def end(self, output: Any) -> None:
        """Note what the module gave."""
        if self._waiting:
            self._waiting[-1].logits, self._waiting[-1].has_ended = self._logits(output), True

    def forget(self) -> None:
        """Let no pass wait any longer: a step has changed the parameters that their losses would need."""
        self._waiting = []

    def check(self, logits: Tensor, labels: Tensor, *, is_training: bool) -> None:
        """Raise ConfigError unless a pass gave these logits, which fit the labels.

        ``is_training`` tells whether the module is in training mode.
        """
        found = self._of(logits, is_training=is_training)
        if found.met < self._slots:
            raise ConfigError(
                f"{self._who}: expected all {self._slots} layers with slots in each pass, found {found.met};"
                " call torch.compiler.reset() on a compiled model; a layer that some passes skip cannot have a slot"
            )
        if found.fault is not None:
            raise ConfigError(found.fault)
        if (wanted := self._task.fault(logits, labels)) is not None:
            given = f"{tuple(logits.shape)} and {labels.dtype} {tuple(labels.shape)}"
            raise ConfigError(f"{self._who}: expected {wanted}, found {given}")
        if (own := found.logits) is not None and own.shape != logits.shape:
            raise ConfigError(
                f"{self._who}: expected logits {tuple(own.shape)}, as the pass of the module gave them, found "
                f"{tuple(logits.shape)}; a seed learns in passes of its own, whose output nothing of yours changes: "
                "process the inputs before the pass, give logits=, or wrap the module in one that does it"
            )

    def take(self, logits: Tensor) -> KeptPass:
        """Return the pass that gave these logits, which ``check`` passed, and keep it no longer."""
        found = self._of(logits, is_training=True)
        self._waiting.remove(found)
        return found.kept

    def _of(self, logits: Tensor, *, is_training: bool) -> _Waiting:
        """Return the only pass that waits for its loss, or the one of several that gave ``logits``.

        Raises:
            ConfigError: if there is none.
        """
        if len(self._waiting) == 1:
            return self._waiting[0]
        for waiting in reversed(self._waiting):
            own = waiting.logits
            if own is not None and own.shape == logits.shape and own.data_ptr() == logits.data_ptr():
                return waiting
        if self._waiting:
            raise ConfigError(
                f"{self._who}: {len(self._waiting)} passes wait for their loss, and the logits are of none of them, as "
                f"a copy or a part would be, or those of a pass with {MOST_WAITING} others after it, which is lost; "
                "compute each loss right after its pass, or from the very logits of the pass"
            )
        remedy = (
            "it is in training mode, so call it as model(inputs), not its forward or a part of it (Lightning: name the "
            "part with model=), and compute the loss once for each pass"
            if is_training
            else "call model.train() and compute the loss once for each pass"
        )
        raise ConfigError(
            f"{self._who}: expected logits of a pass of the module in training mode, found none; {remedy}"
        )

    @torch.no_grad()
    def _logits(self, output: Any) -> Tensor | None:
        """Return the logits in what a pass gave, or None if it is for something else."""
        if not isinstance(output, Tensor) and self._to_logits is not None:
            with suppress(AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
                output = self._to_logits(output)
        return output.detach() if isinstance(output, Tensor) else None
