"""The envelope around the lines of one put, which every bus carries.

A put has one envelope for all of its lines. ``event_id`` and ``payload`` differ from line to line and follow from it:
the id is ``codec.event_id_of`` of type and line. On topics whose lines are envelopes nothing is wrapped.
"""

from __future__ import annotations

import struct
from datetime import datetime

from simic.bus.codec import decode, encode
from simic.contracts.envelope import EventEnvelope
from simic.contracts.errors import ContractError
from simic.contracts.names import FIELD_REPORT_TYPE, FIELD_REPORTS, POLICY_UPDATES

__all__ = ["HEADER_LIMIT_BYTES", "LINES_ARE_ENVELOPES", "envelope_around", "pack_header", "read_header"]

LINES_ARE_ENVELOPES = frozenset({POLICY_UPDATES})
SOURCE = "simic"
HEADER_LIMIT_BYTES = 4096
_TYPES = {FIELD_REPORTS: FIELD_REPORT_TYPE}
_MAGIC = 0x184D2A50
"""Begins a skippable frame of zstd (RFC 8878), which every decompressor passes over."""
_FRAME = struct.Struct("<II")
_NO_EVENT = "0" * 32


def envelope_around(topic: str, name: str, now: datetime, ttl_s: int) -> EventEnvelope:
    """Return the envelope of a put, without event id and payload; ``name`` becomes its correlation id."""
    kind = _TYPES.get(topic, topic.replace("-", "_"))
    return EventEnvelope(
        event_id=_NO_EVENT, type=kind, source=SOURCE, created_at=now, ttl_s=ttl_s, payload=b"", correlation_id=name
    )


def pack_header(envelope: EventEnvelope) -> bytes:
    """Return the envelope as the first frame of a compressed file."""
    data = encode(envelope)
    return _FRAME.pack(_MAGIC, len(data)) + data


def read_header(data: bytes) -> EventEnvelope | None:
    """Return the envelope in the first bytes of a file; None if it has none, as files of other programs have none.

    A frame that holds something else is no envelope: it says nothing about the lines.
    """
    if len(data) < _FRAME.size:
        return None
    magic, size = _FRAME.unpack_from(data)
    if magic != _MAGIC or size > len(data) - _FRAME.size:
        return None
    try:
        return decode(EventEnvelope, data[_FRAME.size : _FRAME.size + size])
    except ContractError:
        return None
