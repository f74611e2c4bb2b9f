"""Metrics and logs. Code emits records to a sink that the caller chooses; the sink never affects results."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from simic.contracts.errors import ConfigError

__all__ = [
    "JsonLinesSink",
    "MetricSink",
    "NullObserver",
    "NullSink",
    "TrainingObserver",
    "Update",
    "append_line",
    "configure_logging",
    "read_metrics",
]

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


class MetricSink(Protocol):
    """Receiver of metrics per step; it never raises for a value that it cannot show."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record ``metrics`` at ``step``."""


class NullSink:
    """Sink that drops every record."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Drop the record."""


class Update(NamedTuple):
    """One optimiser step of a training."""

    step: int
    """Counted over all phases and rounds."""
    phase: str
    metrics: Mapping[str, float]
    time_ms: float
    """Wall-clock time of the step, from asking for it to its metrics, with the assembly of its batch."""
    open_ms: float = 0.0
    """Milliseconds since the step before during which a circuit breaker was open."""


class TrainingObserver(Protocol):
    """Follows one training. It must not raise, and nothing that it does affects what is learned."""

    def begin(self, metrics: Mapping[str, float]) -> None:
        """Take note of the data: ``buffer_size`` and ``buffer_memory_mb``."""

    def update(self, update: Update) -> None:
        """Take note of a step; those that a resumed training repeats are left out."""

    def end(self, policy: str, recoveries: int, stopped: str | None = None) -> None:
        """Take note of the end: the digest of the sealed policy, and the divergences on the way.

        ``stopped`` says why a hopeless training ended early; None if it finished.
        """


class NullObserver:
    """Observer that takes note of nothing."""

    def begin(self, metrics: Mapping[str, float]) -> None:
        """Do nothing."""

    def update(self, update: Update) -> None:
        """Do nothing."""

    def end(self, policy: str, recoveries: int, stopped: str | None = None) -> None:
        """Do nothing."""


class JsonLinesSink:
    """Sink that appends ``{"step": n, "metrics": {...}}`` lines; non-finite values are written as null.

    No other process writes into the file between two of its records, but one may before the first of them.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_torn = _is_torn(path)
        self._file = path.open("ab", buffering=0)
        self._begun: int | None = None
        """Size of the file before a record that was not written completely."""
        if is_torn:  # left by a process that was killed; the new record starts on a line of its own
            self._write(b"\n")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one line at once, so a killed run keeps its curves.

        Raises:
            OSError: if the line cannot be written; the next call removes what was written of it, so it can be repeated.
        """
        values = {name: (number if math.isfinite(number := float(x)) else None) for name, x in metrics.items()}
        self._write(json.dumps({"step": step, "metrics": values}, allow_nan=False).encode() + b"\n")

    def _write(self, line: bytes) -> None:
        if self._begun is not None:
            self._file.truncate(self._begun)
        self._begun = os.fstat(self._file.fileno()).st_size
        written = 0
        while written < len(line):
            written += self._file.write(line[written:])
        self._begun = None

    def close(self) -> None:
        """Close the file; further records raise."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def append_line(path: Path, text: str) -> None:
    """Append one line to a file, which is created if it is missing; a torn line before it is ended first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    start = "\n" if _is_torn(path) else ""
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{start}{text}\n")


def _is_torn(path: Path) -> bool:
    if not path.exists() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def read_metrics(path: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """Return the records of a JsonLinesSink in order; null becomes NaN, and a torn last line is left out."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                continue
            yield record["step"], {k: math.nan if v is None else v for k, v in record["metrics"].items()}


class _StderrHandler(logging.Handler):
    """Handler that looks up ``sys.stderr`` per record, so that lines do not break a live progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(self.format(record) + "\n")


def configure_logging(level: str = "INFO") -> None:
    """Send the ``simic`` logger to stderr in UTC; calling it again replaces what it set before."""
    name = level.upper()
    if name not in LEVELS:
        raise ConfigError(f"log level {level!r} is not known; use one of {', '.join(LEVELS)}")
    logger = logging.getLogger("simic")
    for handler in [h for h in logger.handlers if isinstance(h, _StderrHandler)]:
        logger.removeHandler(handler)
    handler = _StderrHandler()
    formatter = logging.Formatter("%(asctime)sZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logger.addHandler(handler)
    logger.setLevel(name)
