"""Arrays of a Grower's state as tensors, which ``torch.load`` reads with ``weights_only``, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["to_arrays", "to_tensors"]


def to_tensors(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by name with a copy of every array as a tensor."""
    return {
        name: torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value
        for name, value in values.items()
    }


def to_arrays(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by name with a copy of every tensor as an array."""
    return {name: value.numpy().copy() if isinstance(value, Tensor) else value for name, value in values.items()}
