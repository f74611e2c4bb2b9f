"""Bytes on the wire and contracts in memory."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import TypeVar

import zstandard
from pydantic import ValidationError

from simic.contracts.base import Contract
from simic.contracts.envelope import EventEnvelope
from simic.contracts.errors import ContractViolation

__all__ = ["MAX_PAYLOAD_BYTES", "decode", "encode", "envelop", "unwrap"]

MAX_PAYLOAD_BYTES = 1 << 20
C = TypeVar("C", bound=Contract)


def encode(contract: Contract) -> bytes:
    """One line of JSON, without a line end."""
    return contract.model_dump_json().encode()


def decode(model: type[C], data: bytes) -> C:
    """The contract in these bytes, or ContractViolation with every fault's place."""
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(str(part) for part in fault['loc']) or 'document'}: {fault['msg']}"
            for fault in error.errors(include_url=False, include_input=False)[:5]
        )
        raise ContractViolation(f"not a {model.__name__} ({error.error_count()} faults): {faults}") from error


def envelop(payload: Contract, *, type_: str, source: str, created_at: datetime) -> EventEnvelope:
    """An envelope whose event id is that of its content, so that publishing twice is recognisable."""
    data = encode(payload)
    if len(data) > MAX_PAYLOAD_BYTES:
        raise ContractViolation(f"{type_}: {len(data)} bytes exceed {MAX_PAYLOAD_BYTES}")
    event_id = hashlib.sha256(type_.encode() + b":" + data).hexdigest()[:32]
    return EventEnvelope(event_id=event_id, type=type_, source=source, created_at=created_at, payload=data)


def unwrap(envelope: EventEnvelope, model: type[C]) -> C:
    """The payload, unpacked to at most ``MAX_PAYLOAD_BYTES``."""
    data = envelope.payload
    if envelope.content_encoding == "zstd":
        reader = zstandard.ZstdDecompressor().stream_reader(data)
        try:
            data = reader.read(MAX_PAYLOAD_BYTES + 1)
        except zstandard.ZstdError as error:
            raise ContractViolation(f"event {envelope.event_id}: the payload is not zstd: {error}") from error
    if len(data) > MAX_PAYLOAD_BYTES:
        raise ContractViolation(f"event {envelope.event_id}: the payload exceeds {MAX_PAYLOAD_BYTES} bytes")
    return decode(model, data)
