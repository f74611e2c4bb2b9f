"""The clock, passed as an argument: no code below ``simic.app`` reads the time by itself."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

__all__ = ["Clock", "utc_now"]

Clock = Callable[[], datetime]
"""Returns the present time, aware and in UTC."""


def utc_now() -> datetime:
    """Return the time of the system clock in UTC."""
    return datetime.now(UTC)
