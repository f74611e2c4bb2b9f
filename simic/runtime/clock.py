"""The time, as an argument: nothing below the composition root reads the clock by itself."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

__all__ = ["Clock", "utc_now"]

Clock = Callable[[], datetime]
"""Returns an aware moment in UTC."""


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)
