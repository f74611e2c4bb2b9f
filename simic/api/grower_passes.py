"""Passes of a model that its owner trains, and the logits in its outputs. Shapes: B batch, C classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from simic.contracts.errors import ConfigError
from simic.hosts.custom.autocast import with_plain_forward, without_autocast
from simic.hosts.custom.inspect import LogitsError

__all__ = ["OwnPasses"]


class OwnPasses:
    """Runs the passes of a Grower; ``logits`` takes the logits out of an output that is no tensor."""

    def __init__(self, model: nn.Module, logits: Callable[[Any], Tensor] | None) -> None:
        self._model, self._logits, self._leaves_tensors = model, logits, False

    @contextmanager
    def run(self) -> Iterator[None]:
        """Let the model give logits, in passes outside of its owner's inference mode and autocast.

        Raises:
            ConfigError: if the output cannot be logits; the message says so if ``logits`` is given but not used.
        """
        with ExitStack() as stack:
            for device in {torch.device("cpu"), *(parameter.device for parameter in self._model.parameters())}:
                stack.enter_context(without_autocast(device))
            stack.enter_context(with_plain_forward(self._model))
            if torch.is_inference_mode_enabled():
                stack.enter_context(torch.inference_mode(False))
                stack.enter_context(torch.no_grad())
            if self._logits is not None:
                hook = self._model.register_forward_hook(lambda _model, _arguments, output: self.to_logits(output))
                stack.callback(hook.remove)
            try:
                yield
            except LogitsError as error:
                if self._leaves_tensors:
                    raise ConfigError(f"{error}; logits= is not used, because the model gives a tensor") from error
                raise

    def to_logits(self, output: Any) -> Tensor:
        """Return the logits [B, C] in an output of the model, or those of another task."""
        if self._logits is None or isinstance(output, Tensor):
            self._leaves_tensors |= self._logits is not None
            return cast(Tensor, output)
        return self._logits(output)
