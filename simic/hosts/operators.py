"""How a seed's delta meets the state it grows on."""

from __future__ import annotations

from torch import Tensor

from simic.hosts.protocols import Operator

__all__ = ["change_of"]


def change_of(operator: Operator, h: Tensor, delta: Tensor) -> Tensor:
    """What alpha scales and the state h gains, both [n, B, *space, D]; 0 where delta is 0."""
    if operator is Operator.MULTIPLY:
        return h * delta
    if operator is Operator.GATE:
        return h * (delta.sigmoid() * 2.0 - 1.0)
    return delta
