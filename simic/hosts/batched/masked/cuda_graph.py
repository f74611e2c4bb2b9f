"""Capture a function as a CUDA graph on its first call and replay it afterwards.

An epoch of small hosts is thousands of tiny kernels, whose launches take longer than their work. A CUDA graph launches
them at once; shapes and addresses must not change, and no value may be read back while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = ["Replayed"]


class Replayed:
    """A function without arguments and result: a plain call on a CPU, a CUDA graph on a GPU."""

    def __init__(self, function: Callable[[], None], device: torch.device, changes: Sequence[Tensor] = ()) -> None:
        """Wrap a function; ``changes`` are the tensors that it updates, restored after the warm-up call."""
        self._function, self._device, self._changes = function, device, changes
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Run the function once; on a GPU the call returns before the work is done."""
        if self._device.type != "cuda":
            self._function()
            return
        with torch.cuda.device(self._device):
            if self._graph is None:
                self._graph = self._record()
            self._graph.replay()

    def _record(self) -> torch.cuda.CUDAGraph:
        """Capture the function after a warm-up call, in which libraries allocate work space that cannot be captured."""
        before = [tensor.clone() for tensor in self._changes]
        aside = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self._function()
        torch.cuda.current_stream().wait_stream(aside)
        for tensor, values in zip(self._changes, before, strict=True):
            tensor.copy_(values)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._function()
        return graph
