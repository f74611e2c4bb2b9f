"""Argument checks that name the tensor of a wrong shape or dtype."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

__all__ = ["check_same_float", "check_time_batch"]


def check_time_batch(name: str, tensor: Tensor) -> tuple[int, int]:
    """Return (T, B) of a time-major tensor; raise ValueError unless it is [T, B] with T, B >= 1."""
    if tensor.dim() != 2 or tensor.numel() == 0:
        raise ValueError(f"{name}: expected [T, B] with T, B >= 1, found shape {tuple(tensor.shape)}")
    return tensor.shape[0], tensor.shape[1]


def check_same_float(reference: str, tensors: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless all tensors share shape, floating dtype and device of ``tensors[reference]``."""
    expected = tensors[reference]
    if not expected.is_floating_point():
        raise ValueError(f"{reference}: expected a floating dtype, found {expected.dtype}")
    for name, tensor in tensors.items():
        if tensor.shape != expected.shape or tensor.dtype != expected.dtype or tensor.device != expected.device:
            raise ValueError(
                f"{name}: expected {tuple(expected.shape)} {expected.dtype} on {expected.device} like {reference}, "
                f"found {tuple(tensor.shape)} {tensor.dtype} on {tensor.device}"
            )
