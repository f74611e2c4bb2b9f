"""Validation of one line of bytes: a report in canonical form, or the reason for refusing it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from simic.bus.protocol import Defect, Line
from simic.contracts.consistency import find_contradiction
from simic.contracts.faults import describe_faults
from simic.contracts.field_report import FieldReport
from simic.contracts.settings.run import IngestConfig
from simic.contracts.state import SystemState
from simic.ingestion.fast_validator import nesting, strict_struct_for
from simic.lake.quarantine import Reason
from simic.runtime.nearest_name import suggestion
from simic.runtime.repeated_fields import find_repeated_field

__all__ = ["Accepted", "Refused", "Validator", "exceeds_depth"]

_DELETE = bytes(byte for byte in range(256) if byte not in b'[]{}"\\')
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)', re.DOTALL)
"""A string, also one that the text cuts off: a quote that began none would make the search of a text quadratic."""
_OPEN = ord("[")


def exceeds_depth(limit: int, text: bytes) -> bool:
    """Return whether objects and arrays nest more than ``limit`` deep anywhere in the text.

    For text that is not JSON, brackets outside strings count. Uses memory of the size of the text and no recursion.
    """
    brackets = text.translate(_ONE_KIND, _DELETE).replace(b'""', b"")
    if b'"' in brackets or b"\\" in brackets:  # some string holds a bracket, a quote or a backslash
        brackets = _STRING.sub(b"", text).translate(_ONE_KIND, _DELETE + b'"\\')
    rest = brackets
    for _ in range(limit):  # each round removes the innermost level of the whole text
        if not rest:
            return False
        rest = rest.replace(b"[]", b"")
    return bool(rest) and _is_deeper(limit, brackets)


def _is_deeper(limit: int, brackets: bytes) -> bool:
    """Compute the same by counting, which is slower but also correct for unbalanced text."""
    depth = 0
    for bracket in brackets:
        depth += 1 if bracket == _OPEN else -1
        if depth > limit:
            return True
    return False


_ISSUED_AT = b',"issued_at":"'
_NO_BRANCH = b',"branch_of":null,"branch_step":null'
_NO_TRIAL = b',"trial_id":null,"judgement":null'
_UNMEASURED = (b',"host_parameters":null', b',"train_samples":null', b',"effective_dimension":null')
"""Fields of states that earlier contracts did not have."""
_REPORT_ID = re.compile(rb'"report_id"\s*:\s*"([0-9a-f]{32})"')
_MESSAGE_LIMIT = 512
_NOTE_LIMIT = 1024
"""Most characters of a message about a file; two names of 255 bytes fit."""
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_DEFECTS = {
    Defect.TOO_LONG: (Reason.TOO_LONG, "the line is longer than ingest.max_report_bytes = {limit}"),
    Defect.TORN: (Reason.TORN, "the compressed file ends or is unreadable from here on"),
    Defect.UNREADABLE: (Reason.UNREADABLE, "the source cannot be read"),
    Defect.GIVEN_UP: (Reason.GIVEN_UP, "the source exceeds a limit of the reader"),
}


class Accepted(NamedTuple):
    """A valid report in canonical form."""

    report_id: str
    content_digest: str
    """SHA-256 of ``data`` without ``issued_at``, so a report that is issued again has the same digest; also without the
    null fields of a report that is of no trial and of no branch, and ``_UNMEASURED`` fields, which keeps the digests of
    reports that landed before these fields existed."""
    data: bytes
    """JSON as the contract writes it: coerced values, times in UTC, no field twice."""


class Refused(NamedTuple):
    """A refused line, with the reason."""

    reason: Reason
    message: str
    report_id: str | None
    place: tuple[int | str, ...] = ()
    """Path of the field that the contract refuses first; empty for another reason."""
    is_value_error: bool = False
    """Whether a check in code refuses it, of which the JSON schema has no rule."""


class Validator:
    """Validates lines as field reports.

    A line in canonical form, as Simic's producers write it, is decoded into the strict struct and compared with its
    re-encoding, which takes a third of the time. The contract validates all other lines strictly: a boolean, a text, or
    a number with a point or an exponent is not an integer, and a number in quotes is not a number. JSON has one number
    type, so an integer is a valid float. No field may occur twice.
    """

    def __init__(self, config: IngestConfig, known_blueprints: frozenset[str]) -> None:
        self._config = config
        self._known = known_blueprints
        self._earliest, self._latest = _FIRST, _LAST
        self._encode_into = msgspec.json.Encoder().encode_into
        self._canonical = bytearray()
        is_never_too_deep = nesting(FieldReport) <= config.max_depth
        self._decode = (
            msgspec.json.Decoder(strict_struct_for(FieldReport, known_blueprints)).decode if is_never_too_deep else None
        )

    def begin(self, now: datetime, newest: datetime) -> None:
        """Set the bounds of ``issued_at``: the configured age before ``now``, the configured lead after ``newest``.

        Until the first call any time is accepted.
        """
        config = self._config
        self._earliest = _shifted(now, -timedelta(days=config.max_age_days))
        self._latest = _shifted(newest, timedelta(seconds=config.max_future_s))

    def validate(self, line: Line) -> Accepted | Refused:
        """Return the report or the reason for refusing the line; raises nothing."""
        if line.defect is None and self._decode is not None:
            try:
                report: Any = self._decode(line.data)
            except (msgspec.DecodeError, UnicodeDecodeError):
                return self.validate_with_contract(line)
            self._encode_into(report, self._canonical)
            if (
                self._canonical == line.data
                and self._earliest <= report.issued_at <= self._latest
                and find_contradiction(report) is None
            ):
                return Accepted(report.report_id, _content_digest(line.data), line.data)
        return self.validate_with_contract(line)

    def validate_with_contract(self, line: Line) -> Accepted | Refused:
        """Validate with the contract only: size and depth before parsing, the time of issue last."""
        if line.defect is not None:
            reason, message = _DEFECTS[line.defect]
            message = message.format(limit=self._config.max_report_bytes) + (line.note and f": {line.note}")
            return Refused(reason, message[:_NOTE_LIMIT], _report_id(line.data))
        if exceeds_depth(self._config.max_depth, line.data):
            message = f"nested deeper than ingest.max_depth = {self._config.max_depth}"
            return Refused(Reason.TOO_DEEP, message, _report_id(line.data))
        try:
            report = FieldReport.model_validate_json(line.data, strict=True)
        except ValidationError as error:
            return _explain(error, _report_id(line.data))
        if (fault := _repeated_key(line.data)) is not None:
            return Refused(*fault, report.report_id)
        if unknown := sorted(_blueprints(report) - self._known):
            hint = suggestion(unknown[0], sorted(self._known))
            message = f"unknown blueprints {unknown}{'.' if hint else ''}{hint}"
            return Refused(Reason.UNKNOWN_BLUEPRINT, message[:_MESSAGE_LIMIT], report.report_id)
        if (contradiction := find_contradiction(report)) is not None:
            return Refused(Reason.CONTRADICTION, contradiction[:_MESSAGE_LIMIT], report.report_id)
        if not self._earliest <= report.issued_at <= self._latest:
            return Refused(Reason.ISSUED_AT, self._explain_moment(report.issued_at), report.report_id)
        data = report.model_dump_json().encode()
        return Accepted(report.report_id, _content_digest(data), data)

    def _explain_moment(self, issued_at: datetime) -> str:
        found = f"found {issued_at.isoformat()}"
        if issued_at > self._latest:
            bound = f"at the latest {self._latest.isoformat()} (ingest.max_future_s = {self._config.max_future_s:g})"
            return f"issued_at: expected {bound}, {found}: set the producer's clock, or send the report again later"
        bound = f"at the earliest {self._earliest.isoformat()} (ingest.max_age_days = {self._config.max_age_days:g})"
        return f"issued_at: expected {bound}, {found}"


def _shifted(moment: datetime, by: timedelta) -> datetime:
    try:
        return moment + by
    except OverflowError:
        return _LAST if by > timedelta(0) else _FIRST


def _repeated_key(data: bytes) -> tuple[Reason, str] | None:
    """Return the reason for refusing a text with a repeated field, or None.

    The contract takes the last of several values, other readers may take the first. A line in canonical form has no
    repeated field, so only lines that the contract validates are read again.
    """
    try:
        fault = find_repeated_field(data)
    except ValueError as error:  # a number of thousands of digits, overwritten by a later value
        return Reason.MALFORMED_JSON, f"not JSON: {error}"[:_MESSAGE_LIMIT]
    return None if fault is None else (Reason.DUPLICATE_KEY, fault[:_MESSAGE_LIMIT])


def _content_digest(data: bytes) -> str:
    # Inside a JSON string a quote is escaped, so these bytes occur nowhere but at the field itself.
    for absent in _UNMEASURED:
        data = data.replace(absent, b"")
    # It stands near the end of all but an episode's last report, directly after the fields of a branch and a trial.
    start = data.rindex(_ISSUED_AT)
    end = data.index(b'"', start + len(_ISSUED_AT)) + 1
    for absent in (_NO_TRIAL, _NO_BRANCH):
        if data.endswith(absent, 0, start):
            start -= len(absent)
    digest = hashlib.sha256(data[:start])
    digest.update(data[end:])
    return digest.hexdigest()


def _blueprints(report: FieldReport) -> set[str]:
    """Return every blueprint that the report names."""
    names = {*report.available.blueprint, report.action.blueprint, report.blueprint_id}
    for state in _states(report):
        names.update(slot.blueprint for slot in state.slots)
    return {name for name in names if name is not None}


def _states(report: FieldReport) -> Iterable[SystemState]:
    return (report.state,) if report.final_state is None else (report.state, report.final_state)


def _explain(error: ValidationError, report_id: str | None) -> Refused:
    """Return the refusal for the most severe reason, with the first errors, their locations, and the first location.

    The input is not quoted.
    """
    faults = error.errors(include_url=False, include_input=False)
    reason = min((_reason(fault) for fault in faults), key=_GRAVITY.index)
    relevant = [fault for fault in faults if _reason(fault) is reason]
    first, message = relevant[0], describe_faults(error, "report", relevant)[:_MESSAGE_LIMIT]
    return Refused(reason, message, report_id, first["loc"], first["type"] == "value_error")


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
    match = _REPORT_ID.search(data)
    return match.group(1).decode() if match else None
