"""What telemetry remembers of the updates of one training: newest values, times, and what service levels need."""

from __future__ import annotations

from array import array
from collections.abc import Mapping

import numpy as np

from simic.runtime.telemetry import Update

__all__ = ["TrainingStatistics"]

MEDIAN, TAIL = 0.5, 0.95


class TrainingStatistics:
    """Grows by one number per update."""

    def __init__(self) -> None:
        self.newest: dict[str, float] = {}
        """Newest value of each metric, whatever its phase."""
        self._times_ms = array("d")
        self._steps = 0.0
        self._is_conservative: bool | None = None
        self._entries = 0
        self._open_ms = 0.0

    def begin(self, metrics: Mapping[str, float]) -> None:
        """Take note of the data."""
        self.newest |= metrics

    def update(self, update: Update) -> None:
        """Take note of an update."""
        metrics = update.metrics
        self.newest |= metrics
        self._times_ms.append(update.time_ms)
        self._steps += metrics.get("step_count", 0.0)
        if (mode := metrics.get("conservative_mode")) is not None:
            self._entries += mode > 0 and not self._is_conservative
            self._is_conservative = mode > 0
        self._open_ms += update.open_ms

    @property
    def updates(self) -> int:
        """Return the number of updates."""
        return len(self._times_ms)

    @property
    def p95_ms(self) -> float | None:
        """Return the 95th percentile of the time of an update; None before the first one."""
        return float(np.quantile(self._times_ms, TAIL)) if self._times_ms else None

    @property
    def conservative_entries(self) -> int | None:
        """Return the entries into conservative mode; None if no update said whether it was made in it."""
        return None if self._is_conservative is None else self._entries

    @property
    def breaker_open_share(self) -> float | None:
        """Return the share of the time during which a breaker was open; None before the first update."""
        return min(1.0, self._open_ms / max(sum(self._times_ms), 1e-9)) if self._times_ms else None

    def summary(self) -> dict[str, float]:
        """Return the metrics of the clock so far."""
        if not self._times_ms:
            return {"updates": 0.0}
        median, tail = np.quantile(self._times_ms, (MEDIAN, TAIL)).tolist()
        seconds = sum(self._times_ms) / 1000.0
        return {
            "updates": float(self.updates),
            "training_time_ms": self._times_ms[-1],
            "training_time_p50_ms": median,
            "training_time_p95_ms": tail,
            "steps_per_second": self._steps / max(seconds, 1e-9),
        }
