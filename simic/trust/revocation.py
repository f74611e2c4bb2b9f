"""The revocation list: keys that are no longer trusted, even if the folder of keys holds them.

``revoked.jsonl`` has one signed record per line for the purpose ``revocation``. Each carries ``previous_sha256``, the
SHA-256 of the canonical form of the line before it, and the public key that signed it. A line is valid if its signer
was trusted here and not revoked by an earlier line; a key may revoke itself. The public key in the folder proves that a
signer was trusted: ``<key id>.pub``, or ``<key id>.revoked`` once it was revoked, which proves nothing else.

The file is replaced as a whole, so a crash never leaves half a line. Anything that does not verify is damage, and then
no key is trusted. Lines cut off at the end cannot be detected here; the journal of promotions names the revoked keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, ValidationError

from simic.contracts.base import Contract, Count, Digest, UtcDatetime
from simic.contracts.errors import ContractError, IntegrityError, SimicError
from simic.contracts.faults import describe_faults
from simic.contracts.results.keys import KeyId, PublicKey
from simic.runtime.files import atomic_write
from simic.trust.canonical import canonical_bytes, digest_of
from simic.trust.ed25519 import check_signature, key_id_of
from simic.trust.records import KEY_FIELD, RecordSigner, sign_record, verify_record

__all__ = ["FORMER_SUFFIX", "REVOKED_NAME", "Revocation", "Revocations", "add_revocation", "read_revocations"]

REVOKED_NAME = "revoked.jsonl"
FORMER_SUFFIX = ".revoked"
"""Suffix of the public key of a revoked key, which proves that the key was trusted here once."""
PURPOSE = "revocation"


class Revocation(Contract):
    """One line of the list."""

    schema_version: Literal[1] = 1
    revoked: KeyId
    """Id of the revoked key."""
    public_key: PublicKey | None
    """Public key of the revoked key, so that its signatures can still be recognised; null if it was not known here."""
    reason: Annotated[str, Field(min_length=1, max_length=4096)]
    at: UtcDatetime
    signer_public_key: PublicKey
    """Public key that signed this line."""
    previous_sha256: Digest | None
    """SHA-256 of the line before; null in the first."""
    number: Count
    """Number of the line, from 1."""


class Revocations(NamedTuple):
    """The whole verified list."""

    by_key: Mapping[str, Revocation]
    """Lines in the order of the list."""
    head: str | None
    """SHA-256 of the last line."""


class _OneKey:
    """Verifies signatures of the one key that a line names as its signer."""

    def __init__(self, public_key: object) -> None:
        try:
            self._public_bytes = bytes.fromhex(str(public_key))
        except ValueError as error:
            raise IntegrityError("signer_public_key is not in hex") from error

    def verify(self, key_id: str, message: bytes, signature: str) -> None:
        """Raise IntegrityError unless this key signed these bytes."""
        if key_id_of(self._public_bytes) != key_id:
            raise IntegrityError(f"signer_public_key is not that of key {key_id}")
        check_signature(self._public_bytes, message, signature)


def read_revocations(directory: Path) -> Revocations:
    """Read the list in a folder of keys; empty if there is none.

    Raises IntegrityError that names the first line that was edited, removed, moved or signed by a key that was not
    trusted here.
    """
    path = directory / REVOKED_NAME
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return Revocations({}, None)
    except OSError as error:
        raise IntegrityError(f"cannot read the revocation list {path}: {error.strerror}") from error
    return _verified(path, content)


def add_revocation(
    directory: Path, key_id: str, public_bytes: bytes | None, *, reason: str, at: datetime, signer: RecordSigner
) -> Revocations:
    """Revoke a key, durably; nothing changes if it was revoked before.

    Only one process may do so at a time: callers hold a lock. Raises IntegrityError if the list is damaged.
    """
    path = directory / REVOKED_NAME
    content = path.read_bytes() if path.exists() else b""
    known = _verified(path, content)
    if key_id in known.by_key:
        return known
    line = Revocation(
        revoked=key_id,
        public_key=None if public_bytes is None else public_bytes.hex(),
        reason=reason,
        at=at,
        signer_public_key=signer.public_bytes.hex(),
        previous_sha256=known.head,
        number=len(known.by_key) + 1,
    )
    signed = sign_record(line.model_dump(mode="json"), PURPOSE, signer)
    atomic_write(path, content + canonical_bytes(signed) + b"\n")
    return read_revocations(directory)


def _verified(path: Path, content: bytes) -> Revocations:
    revocations: dict[str, Revocation] = {}
    signers: dict[str, tuple[str, str]] = {}
    head: str | None = None
    lines = content.split(b"\n")
    if lines.pop():
        raise _damage(f"{path}: its last line has no end")
    for number, text in enumerate(lines, 1):
        place = f"{path}, line {number}"
        line, signer, digest = _line(text, place)
        if (line.number, line.previous_sha256) != (number, head):
            raise _damage(f"{place}: it does not follow the line before it: one was removed, inserted or moved")
        if signer in revocations:
            raise _damage(f"{place}: it is signed by key {signer}, which line {revocations[signer].number} revokes")
        if line.revoked in revocations:
            raise _damage(f"{place}: key {line.revoked} was revoked before")
        revocations[line.revoked], head = line, digest
        signers.setdefault(signer, (line.signer_public_key, place))
    for signer, (public_key, place) in signers.items():
        _check_was_trusted(path.parent, signer, public_key, place, is_revoked=signer in revocations)
    return Revocations(revocations, head)


def _line(text: bytes, place: str) -> tuple[Revocation, str, str]:
    """Return a line, the id of its signer, and the SHA-256 that the next line names."""
    try:
        record: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damage(f"{place}: not JSON") from error
    if not isinstance(record, dict):
        raise _damage(f"{place}: expected an object, found {type(record).__name__}")
    try:
        fields = verify_record(record, PURPOSE, _OneKey(record.get("signer_public_key")), place)
        return Revocation.model_validate(fields), str(record[KEY_FIELD]), digest_of(record)
    except ValidationError as error:
        raise _damage(f"{place}: not a revocation: {describe_faults(error, 'record')}") from error
    except SimicError as error:  # ContractError for values without a canonical form: NaN, a lone surrogate
        raise _damage(f"{place}: {error}" if isinstance(error, ContractError) else str(error)) from error


def _check_was_trusted(directory: Path, key_id: str, public_key: str, place: str, *, is_revoked: bool) -> None:
    """Raise IntegrityError unless the public key of a signer is here under a name that fits the list."""
    trusted, former = directory / f"{key_id}.pub", directory / f"{key_id}{FORMER_SUFFIX}"
    if _holds(trusted, public_key) or (is_revoked and _holds(former, public_key)):
        return
    if _holds(former, public_key):
        problem = f"{place}: it is signed by key {key_id}, which was revoked later, but no line says so"
        raise _damage(f"{problem}: lines were removed from the end")
    missing = former if is_revoked else trusted
    raise IntegrityError(
        f"{place}: it is signed by key {key_id}, which is not trusted here: no {missing.name} in {directory} holds its "
        f"public key. The revocation list is damaged, so no key is trusted. If that key was one of yours, put the "
        f"file back: its content is {public_key}. If it was not, somebody else wrote that line: restore "
        f"{REVOKED_NAME} from a backup"
    )


def _holds(path: Path, public_key: str) -> bool:
    try:
        return path.read_bytes().strip() == public_key.encode()
    except OSError:
        return False


def _damage(problem: str) -> IntegrityError:
    return IntegrityError(
        f"{problem}. The revocation list is damaged, so no key is trusted: restore it from a backup, or see the "
        f"runbook, A key is lost, or known to others"
    )
