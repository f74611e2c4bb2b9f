"""Settings of telemetry: what a training writes besides its curves. None of them changes what is learned."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from simic.contracts.base import Contract, UnitInterval

__all__ = ["SloConfig", "TelemetryConfig"]


class SloConfig(Contract):
    """Service levels of a training, judged at its end; null does not judge one."""

    training_p95_ms: Annotated[float, Field(gt=0.0, le=1e9)] | None = 500.0
    """Largest 95th percentile of the time of an update in milliseconds, with the assembly of its batch."""
    buffer_mb: Annotated[int, Field(ge=1, le=1_000_000)] | None = 6144
    """Largest size in MiB of the experience that is in memory at once."""
    conservative_per_day: Annotated[int, Field(ge=0, le=100_000)] | None = 2
    """Largest number of entries into conservative mode in 24 hours, over all trainings of the home."""
    breaker_open_share: UnitInterval | None = 0.01
    """Largest share of the time of a training during which a circuit breaker is open."""


class TelemetryConfig(Contract):
    """What a training writes besides its curves, which are always written because a killed training needs them."""

    level: Literal["off", "basic", "full"] = "basic"
    """off: nothing. basic: a packet and the judged service levels at the end of each training. full: packets during a
    training too. ``simic sql`` shows them as ``telemetry`` and ``slo_violations``."""
    packet_updates: Annotated[int, Field(ge=1, le=1_000_000)] = 100
    """Updates from one packet to the next with ``level = full``."""
    prometheus: bool = True
    """Whether the newest values are in ``data/runs/metrics/simic.prom``, rewritten every few seconds, in the text
    format that the textfile collector of Prometheus' node exporter reads; ``ingest.prom`` beside it has the counts of
    the last ingestion. ``level = off`` writes neither."""
    mlflow: bool = False
    """Whether MLflow shows the curves of a training while it runs, in the experiment ``simic trainings``. It needs a
    home with MLflow's database. ``level = off`` shows none. The run of a judged policy has its curves either way."""
    slo: SloConfig = SloConfig()
