"""Ranges from which the causes of a host are drawn."""

from __future__ import annotations

__all__ = ["Range", "between", "log_between", "whole"]

Range = tuple[float, float]
"""Lowest and highest value; equal ones fix a cause."""


def between(limits: Range, draw: float) -> float:
    """Return the number that a uniform ``draw`` in [0, 1) selects."""
    low, high = limits
    return float(low + (high - low) * draw)


def log_between(limits: Range, draw: float) -> float:
    """Return the positive number that a uniform ``draw`` in [0, 1) selects, uniform in its logarithm."""
    low, high = limits
    return low if low == high else float(low * (high / low) ** draw)


def whole(limits: Range, draw: float) -> int:
    """Return a whole number; the minimum counts only where ``draw`` is so near to 1 that the product rounds up."""
    low, high = limits
    return int(min(low + (high - low + 1) * draw, high))
