"""Squared gradients of single samples, by one backward pass for all of them.

A linear layer ``y = W x + b`` sees the rows x_r of a sample, and ``g_r`` is the gradient of the sample's number with
respect to y_r. The gradient with respect to W is the sum of ``g_r x_r^T`` over the sample's rows, and with respect to b
the sum of ``g_r`` (Goodfellow 2015, arXiv:1510.01799, with one row per sample). All g come from one backward pass,
because no sample's number depends on the rows of another. Rows are summed before anything is squared.

Shapes: N samples, R rows of a layer, M the most rows of one sample, I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from simic.contracts.errors import ContractError
from simic.numerics.ragged import row_owners
from simic.numerics.reductions import sums_of_owners

__all__ = ["squared_gradient_sums"]


class _Call(NamedTuple):
    """What a layer was applied to, and what it returned."""

    layer: nn.Linear | nn.LayerNorm
    inputs: Tensor
    """[R, I], without gradient."""
    output: Tensor
    """[R, O]"""


def squared_gradient_sums(
    network: nn.Module, numbers: Callable[[], Tensor], offsets: Callable[[str], Tensor]
) -> dict[str, Tensor]:
    """Return the sum over N samples of the squared gradient of each sample's number, by parameter.

    Args:
        network: Its parameters belong to layers of type ``Linear`` and ``LayerNorm``. A layer that ``numbers`` does not
            apply is left out of the result.
        numbers: Applies the network and returns [N]; the number of a sample depends on the rows of that sample only.
        offsets: Returns int64 [N + 1] for the name of a layer: sample i has the rows ``offsets[i]:offsets[i + 1]``.

    Raises:
        ContractError: for a layer that is applied twice, or to other rows than its offsets say.
    """
    with torch.enable_grad(), _recorded(network) as calls:
        total = numbers().sum()
    gradients = torch.autograd.grad(total, [call.output for call in calls.values()], allow_unused=True)
    sums: dict[str, Tensor] = {}
    for (name, call), gradient in zip(calls.items(), gradients, strict=True):
        ptr = offsets(name)
        if int(ptr[-1]) != len(call.inputs):
            raise ContractError(f"layer {name} has {len(call.inputs)} rows, expected {int(ptr[-1])} of all samples")
        given = torch.zeros_like(call.output) if gradient is None else gradient
        for kind, value in _sums(call, given, ptr).items():
            sums[f"{name}.{kind}" if name else kind] = value
    return sums


@contextmanager
def _recorded(network: nn.Module) -> Iterator[dict[str, _Call]]:
    """Record the calls of all layers by name."""
    calls: dict[str, _Call] = {}

    def recorder(name: str) -> Callable[[Any, tuple[Tensor, ...], Tensor], None]:
        def record(layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if name in calls:
                raise ContractError(f"layer {name} is applied twice; squared gradients are known for one call only")
            calls[name] = _Call(layer, inputs[0].detach(), output)

        return record

    handles = [
        layer.register_forward_hook(recorder(name))
        for name, layer in network.named_modules()
        if isinstance(layer, nn.Linear | nn.LayerNorm)
    ]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _sums(call: _Call, gradient: Tensor, ptr: Tensor) -> dict[str, Tensor]:
    """Return the sums for the weight and the bias of one layer; ``gradient`` [R, O] is that of its output."""
    per_row = {"bias": gradient}
    if isinstance(call.layer, nn.LayerNorm):
        shape = tuple(call.layer.normalized_shape)
        per_row["weight"] = gradient * functional.layer_norm(call.inputs, shape, eps=call.layer.eps)
        sums = {kind: _by_sample(rows, ptr).square().sum(0) for kind, rows in per_row.items()}
    else:
        sums = {"bias": _by_sample(gradient, ptr).square().sum(0), "weight": _products(gradient, call.inputs, ptr)}
    return {kind: value for kind, value in sums.items() if getattr(call.layer, kind) is not None}


def _by_sample(rows: Tensor, ptr: Tensor) -> Tensor:
    """Return [N, O]: the sum of the rows [R, O] of each sample."""
    return sums_of_owners(rows, row_owners(ptr), len(ptr) - 1)


def _products(gradient: Tensor, inputs: Tensor, ptr: Tensor) -> Tensor:
    """Return [O, I]: the sum over samples of the square of ``sum_r g_r x_r^T``."""
    if bool((ptr.diff() == 1).all()):
        return gradient.square().T @ inputs.square()
    return torch.bmm(_padded(gradient, ptr).transpose(1, 2), _padded(inputs, ptr)).square().sum(0)


def _padded(rows: Tensor, ptr: Tensor) -> Tensor:
    """Return [N, M, columns]: the rows of each sample, then zeros."""
    owners = row_owners(ptr)
    place = torch.arange(len(rows), device=rows.device) - ptr[owners]
    padded = rows.new_zeros(len(ptr) - 1, int(ptr.diff().max()), rows.shape[1])
    padded[owners, place] = rows
    return padded
