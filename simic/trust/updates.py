"""Signatures of policy updates: over the canonical form of every field but the signature."""

from __future__ import annotations

from simic.contracts.policy_update import PolicyUpdate
from simic.trust.canonical import canonical_bytes
from simic.trust.keys import Keyring, Signer

__all__ = ["sign_update", "verify_update"]


def sign_update(update: PolicyUpdate, signer: Signer) -> PolicyUpdate:
    """The update with this signer's key id and signature."""
    named = update.model_copy(update={"key_id": signer.key_id})
    return named.model_copy(update={"signature": signer.sign(_signed_bytes(named))})


def verify_update(update: PolicyUpdate, keyring: Keyring) -> None:
    """Raises IntegrityError unless a trusted key signed every field as it stands."""
    keyring.verify(update.key_id, _signed_bytes(update), update.signature)


def _signed_bytes(update: PolicyUpdate) -> bytes:
    return canonical_bytes(update.model_dump(mode="json", exclude={"signature"}))
