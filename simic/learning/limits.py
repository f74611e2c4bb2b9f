"""Limits of time and memory of one training, checked after every update."""

from __future__ import annotations

import time

import psutil

from simic.contracts.errors import ResourceLimitError
from simic.learning.safety.memory import memory_limit_bytes

__all__ = ["TrainingLimits"]

HOUR_S = 3600.0
GB = 1_000_000_000


class TrainingLimits:
    """``train.max_hours`` of all processes of one training together, and ``train.max_memory_gb`` of this one."""

    def __init__(self, max_hours: float, max_memory_gb: float, spent_s: float) -> None:
        """Begin to count; ``spent_s`` seconds were spent before this process resumed the training."""
        self._hours, self._memory_gb = max_hours, max_memory_gb
        self._began_s = time.monotonic() - spent_s
        self._process = psutil.Process()
        self._limit_bytes = memory_limit_bytes(max_memory_gb * GB)

    @property
    def elapsed_s(self) -> float:
        """Return the seconds spent so far."""
        return time.monotonic() - self._began_s

    @property
    def memory_share(self) -> float:
        """Return the resident memory as a share of what this process may use; torch on a CPU has no memory besides."""
        return float(self._process.memory_info().rss / self._limit_bytes)

    def check(self) -> None:
        """Raise ResourceLimitError beyond a limit; checkpoints stay."""
        if (hours := self.elapsed_s / HOUR_S) > self._hours:
            raise ResourceLimitError(
                f"training has taken {hours:.2f} hours, more than train.max_hours {self._hours:g}: raise the limit "
                "and resume the training with `simic train --resume` or `simic run`"
            )
        if (used := self._process.memory_info().rss / GB) > self._memory_gb:
            raise ResourceLimitError(
                f"this process holds {used:.2f} GB of memory, more than train.max_memory_gb {self._memory_gb:g}: raise "
                "the limit, or lower train.replay.max_mb or train.batch_sequences"
            )
