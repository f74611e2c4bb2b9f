"""Ed25519 public keys: ids and signatures in their stored form.

A key's id is the first 16 hex characters of the SHA-256 of its 32 raw public bytes.
"""

from __future__ import annotations

import hashlib
import re

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from simic.contracts.errors import IntegrityError

__all__ = ["KEY_ID", "check_form", "check_signature", "key_id_of"]

PUBLIC_KEY_BYTES = 32
KEY_ID = re.compile(r"[0-9a-f]{16}")
_SIGNATURE = re.compile(r"[0-9a-f]{128}")


def key_id_of(public_bytes: bytes) -> str:
    """Return the id of a public key [32 bytes]."""
    return hashlib.sha256(public_bytes).hexdigest()[:16]


def check_form(key_id: str, signature: str) -> None:
    """Raise IntegrityError unless both have their stored form."""
    if not KEY_ID.fullmatch(key_id) or not _SIGNATURE.fullmatch(signature):
        raise IntegrityError("a key id is 16 and a signature 128 lower-case hex characters")


def check_signature(public_bytes: bytes, message: bytes, signature: str) -> None:
    """Raise IntegrityError unless the private half signed exactly these bytes."""
    key_id = key_id_of(public_bytes)
    check_form(key_id, signature)
    if len(public_bytes) != PUBLIC_KEY_BYTES:
        raise IntegrityError(f"public key {key_id}: expected {PUBLIC_KEY_BYTES} bytes, found {len(public_bytes)}")
    try:
        Ed25519PublicKey.from_public_bytes(public_bytes).verify(bytes.fromhex(signature), message)
    except InvalidSignature as error:
        raise IntegrityError(f"the signature by key {key_id} does not match what was signed") from error
