"""Envelope of an event on the bus."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Literal

from pydantic import Field

from simic.contracts.base import WHOLE, Contract, UtcDatetime

__all__ = ["EventEnvelope", "Priority"]


class Priority(IntEnum):
    """Lower numbers go first."""

    CRITICAL = 0
    HIGH = 1
    NORMAL = 2
    LOW = 3


class EventEnvelope(Contract):
    """Address, lifetime and delivery attempts of an opaque payload."""

    schema_version: Annotated[Literal[1], WHOLE] = 1
    event_id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    type: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_.]{0,63}$")]
    """Event type, such as ``tamiyo.field_report`` or ``innovation.policy_update``."""
    source: Annotated[str, Field(min_length=1, max_length=128)]
    created_at: UtcDatetime
    ttl_s: Annotated[int, Field(ge=1, le=30 * 86_400)] = 86_400
    payload: bytes
    """Payload of at most 1 MiB after decoding; base64 in JSON."""
    content_type: Literal["application/json"] = "application/json"
    content_encoding: Literal["identity", "zstd"] = "identity"
    priority: Priority = Priority.NORMAL
    correlation_id: Annotated[str, Field(max_length=128)] | None = None
    attempt: Annotated[int, Field(ge=1, le=1000)] = 1
    max_attempts: Annotated[int, Field(ge=1, le=1000)] = 3
