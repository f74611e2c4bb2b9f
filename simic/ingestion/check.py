"""One line of bytes: a report in normal form, or the reason why it is none."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from simic.bus.protocol import Defect, Line
from simic.contracts.config import IngestConfig
from simic.contracts.field_report import FieldReport
from simic.contracts.state import SystemState
from simic.ingestion.depth import is_deeper_than
from simic.ingestion.twin import nesting, twin_of
from simic.lake.quarantine import Reason

__all__ = ["Accepted", "Checker", "Refused"]

_ISSUED_AT = b',"issued_at":"'
_REPORT_ID = re.compile(rb'"report_id"\s*:\s*"([0-9a-f]{32})"')
_MESSAGE_LIMIT = 512
_DEFECTS = {
    Defect.TOO_LONG: (Reason.TOO_LONG, "the line is longer than ingest.max_report_bytes = {limit}"),
    Defect.TORN: (Reason.TORN, "the compressed file ends or is unreadable from here on"),
}


class Accepted(NamedTuple):
    """A valid report."""

    report_id: str
    content_digest: str
    """SHA-256 of ``data`` without ``issued_at``: when a thing was told is no part of what was told."""
    data: bytes
    """JSON as the contract writes it: coerced values, moments in UTC, no field twice."""


class Refused(NamedTuple):
    """Not a valid report."""

    reason: Reason
    message: str
    report_id: str | None


class Checker:
    """Tells reports from lines that are none.

    A line in normal form, which is what our own producers write, is read by the contract's twin and compared with
    what the twin writes: that takes a third of the time, and refuses nothing. The contract judges all others.
    """

    def __init__(self, config: IngestConfig, known_blueprints: frozenset[str]) -> None:
        self._config = config
        self._known = known_blueprints
        self._encode_into = msgspec.json.Encoder().encode_into
        self._normal_form = bytearray()
        is_never_too_deep = nesting(FieldReport) <= config.max_depth
        self._decode = (
            msgspec.json.Decoder(twin_of(FieldReport, known_blueprints)).decode if is_never_too_deep else None
        )

    def check(self, line: Line) -> Accepted | Refused:
        """A report or the reason why it is none; never an exception."""
        if line.defect is None and self._decode is not None:
            try:
                report: Any = self._decode(line.data)
            except (msgspec.DecodeError, UnicodeDecodeError):
                return self.judge(line)
            self._encode_into(report, self._normal_form)
            if self._normal_form == line.data:
                return Accepted(report.report_id, _content_digest(line.data), line.data)
        return self.judge(line)

    def judge(self, line: Line) -> Accepted | Refused:
        """The same by the contract alone. Size and depth come before anything is parsed, blueprints last."""
        if line.defect is not None:
            reason, message = _DEFECTS[line.defect]
            return Refused(reason, message.format(limit=self._config.max_report_bytes), _report_id(line.data))
        if is_deeper_than(self._config.max_depth, line.data):
            message = f"nested deeper than ingest.max_depth = {self._config.max_depth}"
            return Refused(Reason.TOO_DEEP, message, _report_id(line.data))
        try:
            report = FieldReport.model_validate_json(line.data)
        except ValidationError as error:
            return Refused(*_explain(error), _report_id(line.data))
        if unknown := sorted(_blueprints(report) - self._known):
            message = f"unknown blueprints {unknown}; known are {sorted(self._known)}"
            return Refused(Reason.UNKNOWN_BLUEPRINT, message[:_MESSAGE_LIMIT], report.report_id)
        data = report.model_dump_json().encode()
        return Accepted(report.report_id, _content_digest(data), data)


def _content_digest(data: bytes) -> str:
    # Inside a JSON string a quote is escaped, so these bytes occur nowhere but at the field itself.
    # It stands near the end of all but an episode's last report.
    start = data.rindex(_ISSUED_AT)
    end = data.index(b'"', start + len(_ISSUED_AT)) + 1
    digest = hashlib.sha256(data[:start])
    digest.update(data[end:])
    return digest.hexdigest()


def _blueprints(report: FieldReport) -> set[str]:
    """Every blueprint the report names."""
    names = {*report.available.blueprint, report.action.blueprint, report.blueprint_id}
    for state in _states(report):
        names.update(slot.blueprint for slot in state.slots)
    return {name for name in names if name is not None}


def _states(report: FieldReport) -> Iterable[SystemState]:
    return (report.state,) if report.final_state is None else (report.state, report.final_state)


def _explain(error: ValidationError) -> tuple[Reason, str]:
    """The gravest fault's reason, and the first faults with their places; the input itself is not repeated."""
    faults = error.errors(include_url=False, include_input=False)
    reason = min((_reason(fault) for fault in faults), key=_GRAVITY.index)
    relevant = [fault for fault in faults if _reason(fault) is reason]
    places = [f"{'.'.join(map(str, fault['loc'])) or 'report'}: {fault['msg']}" for fault in relevant[:3]]
    more = f"; {len(faults)} faults in all" if len(faults) > len(places) else ""
    return reason, ("; ".join(places) + more)[:_MESSAGE_LIMIT]


_GRAVITY = [
    Reason.MALFORMED_JSON,
    Reason.SCHEMA_VERSION,
    Reason.UNKNOWN_FIELD,
    Reason.NON_FINITE,
    Reason.CONTRACT,
]
_BY_TYPE = {
    "json_invalid": Reason.MALFORMED_JSON,
    "json_type": Reason.MALFORMED_JSON,
    "extra_forbidden": Reason.UNKNOWN_FIELD,
    "finite_number": Reason.NON_FINITE,
}


def _reason(fault: ErrorDetails) -> Reason:
    if fault["loc"] == ("schema_version",):
        return Reason.SCHEMA_VERSION
    return _BY_TYPE.get(fault["type"], Reason.CONTRACT)


def _report_id(data: bytes) -> str | None:
    found = _REPORT_ID.search(data)
    return found.group(1).decode() if found else None
