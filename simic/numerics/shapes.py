"""Argument checks that name the tensor of a wrong shape or dtype."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["check_bounds", "check_cuts", "check_same_float", "check_time_batch"]


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


def check_cuts(is_cut: Tensor, shape: tuple[int, int]) -> None:
    """Raise ValueError unless ``is_cut`` is bool of ``shape`` [T, B]."""
    if tuple(is_cut.shape) != shape or is_cut.dtype != torch.bool:
        raise ValueError(f"is_cut: expected {shape} torch.bool, found {tuple(is_cut.shape)} {is_cut.dtype}")


def check_bounds(bounds: Mapping[str, float]) -> None:
    """Raise ValueError unless every bound is a number >= 0 and ``lambda_`` at most 1."""
    for name, bound in bounds.items():
        if not bound >= 0.0:
            raise ValueError(f"{name} must be a number >= 0, found {bound}")
    if bounds["lambda_"] > 1.0:
        raise ValueError(f"lambda_ must lie in [0, 1], found {bounds['lambda_']}")
