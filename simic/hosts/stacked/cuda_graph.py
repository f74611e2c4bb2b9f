"""Work on memory that stays where it is, recorded once on a GPU and replayed from then on.

A small host's epoch is thousands of tiny kernels, and launching them one by one takes longer than running them. A CUDA
graph launches them all at once; in return neither shapes nor addresses may change, and nothing may be read back
while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = ["Replayed"]


class Replayed:
    """A function without arguments or results, called as it is on a CPU and as a CUDA graph on a GPU."""

    def __init__(self, function: Callable[[], None], device: torch.device, changes: Sequence[Tensor] = ()) -> None:
        """``changes`` is what the function adds up in place, so that a call to warm up can be undone."""
        self._function, self._device, self._changes = function, device, changes
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Run once; on a GPU this returns before the work is done."""
        if self._device.type != "cuda":
            self._function()
            return
        with torch.cuda.device(self._device):
            if self._graph is None:
                self._graph = self._record()
            self._graph.replay()

    def _record(self) -> torch.cuda.CUDAGraph:
        """Libraries set up work space on first use, which cannot be recorded: so warm up first, aside."""
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
