"""What is said about the keys of a home: which are believed, what each signed, what a change of keys came to."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from pydantic import Field

from simic.contracts.base import Contract, Count, Digest, UtcDatetime

__all__ = ["KeyChange", "KeyId", "KeyList", "KeyRecord", "KeyStanding", "PublicKey", "Resealing", "VouchedLine"]

KeyId = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
PublicKey = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""32 bytes in hex."""
Text = Annotated[str, Field(max_length=4096)]


class KeyStanding(str, Enum):
    """Whether a key is believed."""

    OWN = "own"
    """It signs for this home, and is believed."""
    TRUSTED = "trusted"
    """It is believed; the private half is elsewhere or gone."""
    REVOKED = "revoked"
    """It is not believed, whatever lies in the folder of keys."""


class KeyRecord(Contract):
    """One key."""

    key_id: KeyId
    standing: KeyStanding
    since: UtcDatetime | None
    """Of a revoked key the moment of its revocation, of another the change time of its file; null without a file."""
    reason: Text | None
    """Of the revocation."""
    is_signing: bool
    """Whether the environment or ``signing.key`` holds the private half, revoked or not."""
    policies: Count
    """Sealed policies that name this key, in ``data/policies`` and among the registry's files. Counts are of what names
    the key; ``simic doctor --deep`` checks the signatures."""
    receipts: Count
    """Sealed receipts in the store, and lines of the ledger of gate decisions."""
    journal_lines: Count
    """Lines of the journal of promotions."""


class KeyList(Contract):
    """Every key that this home knows of."""

    keys: list[KeyRecord]
    signing_problem: Text | None
    """Why the signing key cannot be used; null if it can, or if none was made yet."""


class KeyChange(Contract):
    """What a rotation or a revocation came to."""

    signing_key: KeyId | None
    """The key that signs from now on; null while the environment holds a revoked one."""
    is_new: bool
    """Whether it was made by this verb."""
    revoked: KeyId | None
    """By this verb, now or when it was given before."""
    is_countersigned: bool
    """Whether the journal of promotions now ends with a line by the signing key."""
    next_steps: list[Text]
    """What is left for a person to do."""


class VouchedLine(Contract):
    """A line of the journal of promotions that only a revoked key has signed so far."""

    line: Count
    operation: Text
    phase: Text | None
    target: Count | None
    """Registry number of the champion to be."""
    digest: Digest | None
    at: UtcDatetime
    reason: Text
    key_id: KeyId


class Resealing(Contract):
    """What a revoked key signed and the present key signs again, or would."""

    is_done: bool
    signing_key: KeyId
    head: Digest | None
    """SHA-256 of the last line of the journal that was looked at; null for an empty one."""
    lines: list[VouchedLine]
    """Vouched for as they stand: look at each of them."""
    directories: list[Text]
    """Sealed policies, in ``data/policies`` and among the registry's files, whose content digest the journal names."""
    left: list[Text]
    """What is signed by a revoked key and stays so, and why."""
