"""Field reports of episodes that grow elsewhere, checked as ingestion checks them and put on the bus."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple
from uuid import uuid4

from simic.api.home import Home, container_of
from simic.api.wire import encode
from simic.bus.factory import BusSpec, open_bus
from simic.bus.protocol import Line
from simic.contracts.config import IngestConfig
from simic.contracts.consistency import TOLERANCE
from simic.contracts.errors import ConfigError, ContractError
from simic.contracts.field_report import FieldReport
from simic.contracts.names import FIELD_REPORTS
from simic.hosts.plugins import blueprint_names
from simic.ingestion.validate import Refused, Validator
from simic.runtime.clock import utc_now
from simic.runtime.home import HomeUse

__all__ = ["FieldReportWriter"]

MOST_WAITING = 1000
"""Reports in memory after which they are published."""
MOST_ENDED = 100_000
"""Ended episodes that a writer remembers, so that memory is bounded; the oldest is forgotten first."""


class _Position(NamedTuple):
    """What the next report of an episode has to continue."""

    identity: tuple[object, ...]
    step: int
    epoch: int
    """Epoch of the next state."""
    accuracy: float
    """Validation accuracy of the next state."""
    has_ended: bool


class FieldReportWriter:
    """Publishes field reports; use it in a ``with`` block. One thread at a time may use a writer.

    A report that ingestion would quarantine is refused at once, with the reason. So is one that does not continue its
    episode, because curation would leave out the whole episode. A file on the bus appears complete or not at all.
    """

    def __init__(self, home: Home | None = None, *, spool: str | os.PathLike[str] | None = None) -> None:
        """Open the bus of a home, or a spool folder.

        Args:
            home: By default the home that the command line would use. ``REDIS_URL`` replaces its spool.
            spool: A folder instead, which is created; its content can be moved to ``data/spool`` of a home later.

        Raises:
            ConfigError: if both are given, or the home does not exist or cannot be written.
        """
        if home is not None and spool is not None:
            raise ConfigError("give home or spool, not both: reports are published in one place")
        if spool is not None:
            config = IngestConfig()
            self._bus = open_bus(BusSpec(Path(spool).expanduser(), ingest=config))
        else:
            container = container_of(home, HomeUse.CHANGE)
            config, self._bus = container.config.ingest, container.open_bus()
        self._validator = Validator(config, frozenset(blueprint_names()))
        self._most_bytes = config.max_report_bytes
        self._waiting: list[bytes] = []
        self._episodes: dict[str, _Position] = {}
        self._ended: OrderedDict[str, _Position] = OrderedDict()

    def write(self, report: FieldReport | Mapping[str, Any]) -> None:
        """Check the next report of an episode and keep it for publication.

        The first report of an episode that this writer sees may have any step, so that a restarted program can go on.
        A refused report changes nothing: it can be corrected and written again.

        Raises:
            ContractError: if ingestion would refuse the report, or it does not continue its episode; the message names
                the field, what was expected and what was found.
            TransientError: if the reports before have to be published first and the bus cannot take them now; they wait
                on, this one is not kept, and the same call can be repeated.
        """
        data = report.model_dump_json().encode() if isinstance(report, FieldReport) else encode(report, "report")
        if len(data) > self._most_bytes:
            raise ContractError(f"report: expected at most {self._most_bytes} bytes as JSON, found {len(data)}")
        now = utc_now()
        self._validator.begin(now, now)
        found = self._validator.validate_with_contract(Line(1, data, None))
        if isinstance(found, Refused):
            raise ContractError(f"{found.reason.value}: {found.message}")
        checked = FieldReport.model_validate_json(found.data)
        before = self._episodes.get(checked.run_id) or self._ended.get(checked.run_id)
        if (fault := _break(before, checked)) is not None:
            raise ContractError(f"run {checked.run_id}: {fault}")
        if len(self._waiting) >= MOST_WAITING:
            self.flush()
        self._remember(checked.run_id, _after(checked))
        self._waiting.append(found.data)

    def _remember(self, run_id: str, position: _Position) -> None:
        if not position.has_ended:
            self._episodes[run_id] = position
            return
        self._episodes.pop(run_id, None)
        self._ended[run_id] = position
        if len(self._ended) > MOST_ENDED:
            self._ended.popitem(last=False)

    def flush(self) -> None:
        """Publish the reports that wait, durably.

        Raises:
            TransientError: if the bus cannot take them now; they wait on.
        """
        if self._waiting:
            self._bus.put(FIELD_REPORTS, f"reports-{uuid4().hex}", self._waiting)
            self._waiting = []

    def __enter__(self) -> FieldReportWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Publish what was written, also if the block failed: every report that was accepted is true."""
        self.flush()


def _identity(report: FieldReport) -> tuple[object, ...]:
    """Return what all reports of an episode share."""
    host, state = report.host, report.state
    return (
        host, report.controller, report.policy_version, report.branch_of, report.branch_step, state.horizon,
    )  # fmt: skip


def _after(report: FieldReport) -> _Position:
    return _Position(
        _identity(report),
        report.step + 1,
        report.state.epoch + report.observation_window_epochs,
        report.metrics.validation_accuracy_after,
        report.terminated or report.truncated,
    )


def _break(before: _Position | None, report: FieldReport) -> str | None:
    """Return why a report does not continue its episode; None if it does."""
    if before is None:
        return None
    state = report.state
    if before.has_ended:
        return f"step: expected none after step {before.step - 1}, which ended the episode, found {report.step}"
    if report.step != before.step:
        return f"step: expected {before.step}, the next one, found {report.step}"
    if _identity(report) != before.identity:
        return (
            "host, controller, policy_version, branch_of, branch_step and state.horizon: expected those of the "
            "episode's report before, found others"
        )
    if state.epoch != before.epoch:
        return f"state.epoch: expected {before.epoch}, the end of the window before, found {state.epoch}"
    if abs(state.validation_accuracy - before.accuracy) > TOLERANCE:
        return (
            f"state.validation_accuracy: expected {before.accuracy:.9g}, metrics.validation_accuracy_after of the "
            f"report before, found {state.validation_accuracy:.9g}"
        )
    return None
