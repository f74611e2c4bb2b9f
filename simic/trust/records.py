"""Signed records: JSON objects that a reader accepts because a trusted key signed them.

The signature covers a purpose in addition to the record, so a record signed for one purpose is refused for others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from simic.contracts.errors import IntegrityError
from simic.trust.canonical import canonical_bytes

__all__ = ["KEY_FIELD", "SIGNATURE_FIELD", "RecordSigner", "sign_record", "verify_record"]

KEY_FIELD = "key_id"
SIGNATURE_FIELD = "signature"


class RecordSigner(Protocol):
    """Signs, as ``Signer`` does."""

    public_bytes: bytes
    """The public key, 32 bytes."""
    key_id: str

    def sign(self, message: bytes) -> str:
        """Return the signature in hex, 128 characters."""


class Verifier(Protocol):
    """Verifies signatures, as ``Keyring`` does."""

    def verify(self, key_id: str, message: bytes, signature: str) -> None:
        """Raise IntegrityError unless the key of this id is trusted and signed exactly these bytes."""


def sign_record(record: Mapping[str, Any], purpose: str, signer: RecordSigner) -> dict[str, Any]:
    """Return the record with ``key_id`` and an Ed25519 ``signature`` over the purpose and every other field.

    Raises ContractError if the record has no canonical JSON form.
    """
    named = {**record, KEY_FIELD: signer.key_id}
    return {**named, SIGNATURE_FIELD: signer.sign(_signed_bytes(named, purpose))}


def verify_record(record: Mapping[str, Any], purpose: str, keyring: Verifier, place: str) -> dict[str, Any]:
    """Return the verified record without ``key_id`` and ``signature``.

    Raises IntegrityError that names ``place`` unless a trusted key signed exactly this record for this purpose.
    """
    fields = dict(record)
    signature, key_id = fields.pop(SIGNATURE_FIELD, None), fields.get(KEY_FIELD)
    if not isinstance(signature, str) or not isinstance(key_id, str):
        raise IntegrityError(f"{place}: expected a record signed by a trusted key, found no signature")
    try:
        keyring.verify(key_id, _signed_bytes(fields, purpose), signature)
    except IntegrityError as error:
        raise IntegrityError(f"{place}: {error}") from error
    del fields[KEY_FIELD]
    return fields


def _signed_bytes(record: Mapping[str, Any], purpose: str) -> bytes:
    return canonical_bytes({"purpose": purpose, "record": dict(record)})
