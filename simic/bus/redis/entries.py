"""Convert entries of a stream: fields to envelope and back, entry to line.

An entry's fields are those of ``EventEnvelope`` under their own names, numbers in decimal, the payload as raw bytes. A
field that holds its default may be left out. Lines are the same as in the spool's files: a report's JSON, or the JSON
of the whole envelope on the topics whose lines are envelopes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from tempfile import SpooledTemporaryFile
from types import TracebackType
from typing import NamedTuple, Self

import zstandard
from pydantic import ValidationError

from simic.bus.codec import MAX_PAYLOAD_BYTES, decode, encode
from simic.bus.envelopes import LINES_ARE_ENVELOPES, envelope_around
from simic.bus.protocol import Defect, Line
from simic.bus.redis.connection import RedisServer
from simic.contracts.envelope import EventEnvelope
from simic.contracts.errors import ContractError
from simic.contracts.faults import describe_faults

__all__ = [
    "Entry",
    "Fields",
    "StreamWriter",
    "envelope_of",
    "fields_of",
    "is_expired",
    "key_of",
    "line_of",
    "location_of",
    "pack_command",
    "wrapper",
]

Fields = Mapping[bytes, bytes]
Entry = tuple[bytes, Fields | None]
"""Entry id and fields; None stands for an entry that was trimmed away."""

_NUMBERS = frozenset({"schema_version", "ttl_s", "priority", "attempt", "max_attempts"})
_MOST_FIELDS = len(EventEnvelope.model_fields)
_SEQUENCES = 1000
_MOST_MILLISECONDS = 2**53 // _SEQUENCES - 1
_MOST_SEQUENCE = 2**53 - 1
"""Line numbers have to survive JSON exactly."""


class EntryLocation(NamedTuple):
    """Source and line number of an entry, as in a delivery."""

    source: str
    line: int


def location_of(topic: str, entry_id: bytes) -> EntryLocation:
    """Return the location of an entry, the same on every redelivery.

    It is line ``<milliseconds><sequence in three digits>`` of the stream.

    Entries of one millisecond beyond the thousandth, as after the server's clock was set back, are lines of a source of
    that millisecond. Raises ContractError for an id that fits neither.
    """
    ms, seq = key_of(entry_id)
    if seq < _SEQUENCES and ms <= _MOST_MILLISECONDS:
        return EntryLocation(f"redis/{topic}", ms * _SEQUENCES + seq)
    if seq < _MOST_SEQUENCE:
        return EntryLocation(f"redis/{topic}/{ms}", seq + 1)
    raise ContractError(f"entry {entry_id!r}: its sequence exceeds {_MOST_SEQUENCE - 1}")


def key_of(entry_id: bytes) -> tuple[int, int]:
    """Return the sort key of an entry: milliseconds and sequence."""
    milliseconds, _, sequence = entry_id.partition(b"-")
    return int(milliseconds), int(sequence)


def fields_of(envelope: EventEnvelope) -> list[bytes]:
    """Return names and values in turn, without fields that hold their default."""
    values = envelope.model_dump(exclude_defaults=True, exclude={"payload"}, mode="json")
    flat = [part.encode() for name, value in values.items() for part in (name, str(value))]
    return [*flat, b"payload", envelope.payload]


def envelope_of(fields: Fields) -> EventEnvelope:
    """Return the envelope in these fields; raises ContractError that names every faulty field."""
    if len(fields) > _MOST_FIELDS:
        raise ContractError(f"not an EventEnvelope: {len(fields)} fields, at most {_MOST_FIELDS} expected")
    if len(payload := fields.get(b"payload", b"")) > MAX_PAYLOAD_BYTES:
        raise ContractError(f"a payload of {len(payload)} bytes exceeds {MAX_PAYLOAD_BYTES}")
    if not payload.strip():
        raise ContractError("the payload is missing or empty")
    try:
        values = {name.decode(): value for name, value in fields.items()}
        texts = {name: value.decode() for name, value in values.items() if name != "payload"}
        numbers = {name: int(texts[name]) for name in _NUMBERS & texts.keys()}
        return EventEnvelope.model_validate({**texts, **numbers, "payload": payload})
    except ValidationError as error:
        raise ContractError(f"not an EventEnvelope: {describe_faults(error, 'entry')}") from None
    except ValueError as error:  # not UTF-8, or not a number; a UnicodeDecodeError is one too
        raise ContractError(f"not an EventEnvelope: {type(error).__name__} in a field of text") from None


def line_of(topic: str, number: int, envelope: EventEnvelope, max_line_bytes: int) -> Line:
    """Return the line as the spool gives it: a long one cut and flagged, an undecodable one flagged as torn."""
    around: EventEnvelope | None = envelope
    if topic in LINES_ARE_ENVELOPES:
        data, defect, around = encode(envelope), None, None
    else:
        data, defect = _unpacked(envelope, max_line_bytes)
    defect = Defect.TOO_LONG if len(data) > max_line_bytes else defect
    return Line(number, data[:max_line_bytes], defect, envelope=around)


def _unpacked(envelope: EventEnvelope, max_line_bytes: int) -> tuple[bytes, Defect | None]:
    """Return at most one byte more than the limit."""
    if envelope.content_encoding == "identity":
        return envelope.payload, None
    decoder = zstandard.ZstdDecompressor(max_window_size=8 * 1024 * 1024)
    try:
        with decoder.stream_reader(envelope.payload) as reader:
            return reader.read(max_line_bytes + 1), None
    except zstandard.ZstdError:
        return envelope.payload, Defect.TORN


def is_expired(envelope: EventEnvelope, now: datetime) -> bool:
    """Return whether the time to live of an envelope is over."""
    return now - envelope.created_at >= timedelta(seconds=envelope.ttl_s)  # their sum may lie beyond the year 9999


def wrapper(topic: str, name: str, now: datetime, ttl_s: int) -> Callable[[bytes], list[bytes]]:
    """Return a function that turns a line into an entry's fields; it raises ContractError for an invalid line.

    The event id is a digest of the content, so an event put twice is recognised; ``name`` becomes its correlation id.
    """
    if topic in LINES_ARE_ENVELOPES:
        return lambda line: fields_of(decode(EventEnvelope, line))
    template = envelope_around(topic, name, now, ttl_s)
    kind = template.type
    common = fields_of(template)[2:-1]  # all but the id, the first field, and the payload, the last
    salt = hashlib.sha256(kind.encode() + b":")

    def wrap(line: bytes) -> list[bytes]:
        if len(line) > MAX_PAYLOAD_BYTES:
            raise ContractError(f"{kind}: {len(line)} bytes exceed {MAX_PAYLOAD_BYTES}")
        digest = salt.copy()
        digest.update(line)
        return [b"event_id", digest.hexdigest()[:32].encode(), *common, line]

    return wrap


def pack_command(parts: Iterable[bytes]) -> bytes:
    """Return a command in the wire protocol; several times as fast as the client, which matters per report."""
    arguments = list(parts)
    packed = [b"*%d\r\n" % len(arguments)]
    for argument in arguments:
        packed += (b"$%d\r\n" % len(argument), argument, b"\r\n")
    return b"".join(packed)


_CHUNK_ENTRIES = 500
_CHUNK_BYTES = 1 << 20
_MEMORY_BYTES = 8 << 20
"""Beyond this, commands are kept in a temporary file."""


class StreamWriter:
    """Collects packed XADD commands in memory, or on disk if they are many, and then sends them."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._file = SpooledTemporaryFile(max_size=_MEMORY_BYTES)  # noqa: SIM115 - closed by __exit__
        self._chunks: list[int] = []
        """Bytes of each chunk."""
        self._commands: list[int] = []
        """Commands of each chunk."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, fields: Sequence[bytes]) -> None:
        """Add an entry: names and values in turn."""
        packed = pack_command([b"XADD", self._topic.encode(), b"*", *fields])
        self._file.write(packed)
        if not self._chunks or self._commands[-1] >= _CHUNK_ENTRIES or self._chunks[-1] >= _CHUNK_BYTES:
            self._chunks.append(0)
            self._commands.append(0)
        self._chunks[-1] += len(packed)
        self._commands[-1] += 1

    def send(self, server: RedisServer) -> None:
        """Send every entry in order; a chunk without an answer is sent again, so entries may be there twice."""
        self._file.seek(0)
        for size, commands in zip(self._chunks, self._commands, strict=True):
            server.send(f"add {commands} entries to {self._topic}", self._file.read(size), commands)
