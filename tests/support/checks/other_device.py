"""A device that no machine lacks: tensors that claim to lie on ``meta`` and compute on the CPU.

Like a GPU's, they refuse to meet tensors of the CPU, and every read of their values is counted. What runs here with the
bits of the CPU follows the tensors in hand. Kernels, streams and rounding of a GPU are not imitated.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

__all__ = ["OTHER", "OtherDevice"]

OTHER = torch.device("meta")
_ATEN = torch.ops.aten
_MOVES = (_ATEN._to_copy.default, _ATEN.copy_.default)
_TAKES_INDICES = (_ATEN.index.Tensor, _ATEN.index_put_.default, _ATEN.index_put.default)
"""CUDA allows indices in host memory here."""


class _Elsewhere(Tensor):
    """A tensor on the other device; ``inner`` has its values."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Self:
        made = Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=OTHER, requires_grad=inner.requires_grad
        )
        made.inner = inner
        return made

    def __repr__(self) -> str:
        return f"_Elsewhere({self.inner!r})"

    @classmethod
    def __torch_dispatch__(cls, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(function, args, kwargs or {}, None)


class OtherDevice(TorchDispatchMode):
    """Within this context the other device exists; ``reads`` counts what waits for values of it, by operation."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(function, args, kwargs or {}, self.reads)


def _run(function: Any, args: Any, kwargs: dict[str, Any], reads: Counter[str] | None) -> Any:
    tensors = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, Tensor)]
    there = [one for one in tensors if isinstance(one, _Elsewhere)]
    device = kwargs.get("device")
    target = None if device is None else torch.device(device)
    if there and function not in (*_MOVES, *_TAKES_INDICES):
        strangers = [one.shape for one in tensors if not isinstance(one, _Elsewhere) and one.dim()]
        assert not strangers, f"{function} mixes devices: CPU tensors of {strangers}"
    if reads is not None and there and (name := _reads(function, args, kwargs, target)):
        reads[name] += 1
    inner = {**kwargs, "device": torch.device("cpu")} if target == OTHER else kwargs
    out = function(*tree_map(_unwrap, args), **tree_map(_unwrap, inner))
    if function._schema.name.endswith("_"):  # in place: what came in goes out, and nothing from lists of tensors
        return args[0] if len(function._schema.returns) == 1 else None
    lies_there = target == OTHER if target is not None else bool(there)
    return tree_map(lambda one: _Elsewhere(one) if isinstance(one, Tensor) else one, out) if lies_there else out


def _unwrap(one: Any) -> Any:
    return one.inner if isinstance(one, _Elsewhere) else one


def _reads(function: Any, args: Any, kwargs: dict[str, Any], target: torch.device | None) -> str | None:
    """Return the name of an operation that waits for values: a copy to the CPU, or a size that depends on values."""
    name = function._schema.name.removeprefix("aten::")
    if name == "_local_scalar_dense" or (target is not None and target != OTHER):
        return name
    if name == "copy_" and isinstance(args[1], _Elsewhere) and not isinstance(args[0], _Elsewhere):
        return name
    if name == "repeat_interleave" and kwargs.get("output_size") is None:
        return name
    if name in ("nonzero", "masked_select"):
        return name
    indices = args[1] if name.startswith("index") and len(args) > 1 and isinstance(args[1], list | tuple) else []
    masks = [one for one in indices if isinstance(one, Tensor) and one.dtype in (torch.bool, torch.uint8)]
    return f"{name} by mask" if masks else None
