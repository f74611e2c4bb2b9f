"""Convert contracts to bytes on the wire and back."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import TypeVar

import zstandard
from pydantic import ValidationError

from simic.contracts.base import Contract
from simic.contracts.envelope import EventEnvelope
from simic.contracts.errors import ContractError
from simic.contracts.faults import describe_faults

__all__ = ["MAX_PAYLOAD_BYTES", "decode", "encode", "envelop", "event_id_of", "unwrap"]

MAX_PAYLOAD_BYTES = 1 << 20
C = TypeVar("C", bound=Contract)


def encode(contract: Contract) -> bytes:
    """Return one line of JSON, without a line end."""
    return contract.model_dump_json().encode()


def decode(model: type[C], data: bytes) -> C:
    """Return the contract in these bytes; raises ContractError that names the first faulty fields."""
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise ContractError(f"not a {model.__name__}: {describe_faults(error, 'document')}") from error


def envelop(payload: Contract, *, type_: str, source: str, created_at: datetime) -> EventEnvelope:
    """Return an envelope whose event id is a digest of its content, so that a repeated event is recognised."""
    data = encode(payload)
    if len(data) > MAX_PAYLOAD_BYTES:
        raise ContractError(f"{type_}: {len(data)} bytes exceed {MAX_PAYLOAD_BYTES}")
    return EventEnvelope(
        event_id=event_id_of(type_, data), type=type_, source=source, created_at=created_at, payload=data
    )


def event_id_of(type_: str, payload: bytes) -> str:
    """Return the id of an event from its type and its uncompressed payload."""
    return hashlib.sha256(type_.encode() + b":" + payload).hexdigest()[:32]


def unwrap(envelope: EventEnvelope, model: type[C]) -> C:
    """Return the payload, decompressed to at most ``MAX_PAYLOAD_BYTES``."""
    data = envelope.payload
    if envelope.content_encoding == "zstd":
        reader = zstandard.ZstdDecompressor().stream_reader(data)
        try:
            data = reader.read(MAX_PAYLOAD_BYTES + 1)
        except zstandard.ZstdError as error:
            raise ContractError(f"event {envelope.event_id}: the payload is not zstd: {error}") from error
    if len(data) > MAX_PAYLOAD_BYTES:
        raise ContractError(f"event {envelope.event_id}: the payload exceeds {MAX_PAYLOAD_BYTES} bytes")
    return decode(model, data)
