"""Keys of a home, and the results of key rotation, revocation and resealing."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from pydantic import Field

from simic.contracts.base import Contract, Count, Digest, Text, UtcDatetime

__all__ = ["KeyChange", "KeyId", "KeyList", "KeyRecord", "KeyStanding", "PublicKey", "Resealing", "VouchedLine"]

KeyId = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
PublicKey = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""32 bytes in hex."""


class KeyStanding(str, Enum):
    """Whether signatures of a key are accepted."""

    OWN = "own"
    """Signs for this home and is trusted."""
    TRUSTED = "trusted"
    """Trusted; the private half is elsewhere or lost."""
    REVOKED = "revoked"
    """Revoked; not trusted, even if it lies in the folder of keys."""


class KeyRecord(Contract):
    """One key of a home."""

    key_id: KeyId
    standing: KeyStanding
    since: UtcDatetime | None
    """Time of revocation, or for any other key the change time of its file; null without a file."""
    reason: Text | None
    """Reason for the revocation."""
    is_signing: bool
    """Whether the environment or ``signing.key`` holds the private half, also if revoked."""
    policies: Count
    """Number of sealed policies that name this key, in ``data/policies`` and in the registry. The counts rely on names;
    ``simic doctor --deep`` verifies the signatures."""
    receipts: Count
    """Number of sealed receipts in the store and of lines in the ledgers of gate decisions and of candidates."""
    journal_lines: Count
    """Number of lines in the journal of promotions."""


class KeyList(Contract):
    """All keys known to this home."""

    keys: list[KeyRecord]
    signing_problem: Text | None
    """Why the signing key cannot be used; null if it can, or if there is none yet."""


class KeyChange(Contract):
    """Result of a rotation or a revocation."""

    signing_key: KeyId | None
    """Key that signs from now on; null while the environment holds a revoked one."""
    is_new: bool
    """Whether this command created the key."""
    revoked: KeyId | None
    """Key that was revoked by this command or before it; null for a rotation."""
    is_countersigned: bool
    """Whether the journal of promotions now ends with a line signed by the signing key."""
    next_steps: list[Text]
    """Remaining steps for the operator."""


class VouchedLine(Contract):
    """A line of the journal of promotions that so far only a revoked key has signed."""

    line: Count
    operation: Text
    phase: Text | None
    target: Count | None
    """Registry number of the version that the line makes champion."""
    digest: Digest | None
    at: UtcDatetime
    reason: Text
    key_id: KeyId


class Resealing(Contract):
    """Objects signed by a revoked key that the present key signs again, or would."""

    is_done: bool
    signing_key: KeyId
    head: Digest | None
    """SHA-256 of the last journal line that was examined; null for an empty journal."""
    lines: list[VouchedLine]
    """Journal lines that the present key confirms as they stand; check each of them."""
    directories: list[Text]
    """Sealed policies, in ``data/policies`` and in the registry, whose digest the journal names."""
    left: list[Text]
    """Objects that stay signed by a revoked key, with the reason."""
