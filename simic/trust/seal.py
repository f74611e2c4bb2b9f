"""A sealed directory: flat, complete, and signed.

``manifest.json`` lists every other file with its SHA-256 and size. The digest is taken over that list alone, so
two directories with equal files have equal digests whoever signed them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from simic.contracts.base import Contract, Digest
from simic.contracts.errors import ContractError, IntegrityError
from simic.contracts.faults import describe_faults
from simic.contracts.file_digest import FileDigest
from simic.runtime.files import atomic_write, fsync_file, sha256_file
from simic.trust.canonical import canonical_bytes, digest_of
from simic.trust.keys import SignatureCheck, Signer

__all__ = ["MANIFEST_NAME", "Seal", "describe", "read_seal", "seal", "verify"]

MANIFEST_NAME = "manifest.json"
_MANIFEST_LIMIT_BYTES = 1 << 20


class Seal(Contract):
    """The manifest of a sealed directory."""

    schema_version: Literal[1] = 1
    files: Annotated[list[FileDigest], Field(min_length=1, max_length=4096)]
    """Files sorted by name."""
    digest: Digest
    """SHA-256 over the canonical form of ``files``."""
    key_id: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]
    """Ed25519 signature over the canonical form of all other fields."""


def seal(directory: Path, signer: Signer, expected_digest: str | None = None) -> Seal:
    """Sign every file of ``directory`` and write ``manifest.json`` last and atomically, through a file beside it.

    Raises:
        ContractError: for anything but plain files with plain names.
        IntegrityError: if the digest of the files is not ``expected_digest``, that of files examined before; nothing
            is signed then.
    """
    for unfinished in directory.glob(f".{MANIFEST_NAME}*.tmp"):  # left by a process that was killed while sealing
        unfinished.unlink()
    try:
        files = describe(directory)
    except IntegrityError as error:
        raise ContractError(f"cannot seal {directory}: {error}") from error
    if not files:
        raise ContractError(f"cannot seal {directory}: it holds no files")
    digest = digest_of(files)
    if expected_digest is not None and digest != expected_digest:
        raise IntegrityError(
            f"{directory}: expected digest {expected_digest}, found {digest}: its files changed after they were "
            f"examined, and it is not sealed; find out what changed them, and give the command again"
        )
    for file in files:
        fsync_file(directory / file.name)
    unsigned = Seal(files=files, digest=digest, key_id=signer.key_id, signature="0" * 128)
    sealed = unsigned.model_copy(update={"signature": signer.sign(_signed_bytes(unsigned))})
    # Within the directory, a file that a killed process leaves would break the seal that is still there.
    atomic_write(directory / MANIFEST_NAME, canonical_bytes(sealed), tmp=directory.parent)
    return sealed


def verify(directory: Path, keyring: SignatureCheck, expected_digest: str | None = None) -> Seal:
    """Raise IntegrityError unless a trusted key sealed exactly these bytes.

    Refused are: a changed, missing or extra file, a directory or link among them, names that leave the directory, an
    unknown key, a wrong signature, and a digest other than ``expected_digest``.
    """
    sealed = read_seal(directory, keyring, expected_digest)
    _compare(directory, sealed.files, describe(directory))
    return sealed


def read_seal(directory: Path, keyring: SignatureCheck, expected_digest: str | None = None) -> Seal:
    """Return the seal of a directory, as ``verify`` does, without a look at the files that it lists."""
    sealed = _read_manifest(directory)
    if sealed.digest != digest_of(sealed.files):
        raise IntegrityError(f"{directory}: the digest in {MANIFEST_NAME} is not that of its file list")
    keyring.verify(sealed.key_id, _signed_bytes(sealed), sealed.signature)
    if expected_digest is not None and sealed.digest != expected_digest:
        raise IntegrityError(f"{directory}: expected digest {expected_digest}, found {sealed.digest}")
    return sealed


def describe(directory: Path) -> list[FileDigest]:
    """Return name, SHA-256 and size of every file but the manifest, sorted by name.

    Raises IntegrityError for entries that are not plain files with plain names.
    """
    files = []
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError as error:
        raise IntegrityError(f"{directory} is not a readable directory: {error.strerror}") from error
    for entry in entries:
        if not stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode):
            raise IntegrityError(f"{directory}: {entry.name!r} is not a plain file")
        if entry.name == MANIFEST_NAME:
            continue
        try:
            path = Path(entry.path)
            files.append(FileDigest(name=entry.name, sha256=sha256_file(path), size_bytes=path.stat().st_size))
        except ValidationError as error:
            raise IntegrityError(f"{directory}: {entry.name!r} is not a plain file name") from error
    return files


def _read_manifest(directory: Path) -> Seal:
    path = directory / MANIFEST_NAME
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise IntegrityError(f"{directory} is not sealed: cannot read {MANIFEST_NAME} ({error.strerror})") from error
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(_MANIFEST_LIMIT_BYTES + 1)
    if len(content) > _MANIFEST_LIMIT_BYTES:
        raise IntegrityError(f"{path} is longer than {_MANIFEST_LIMIT_BYTES} bytes")
    try:
        return Seal.model_validate_json(content)
    except ValidationError as error:
        raise IntegrityError(f"{path} is not a seal: {describe_faults(error, 'seal')}") from error


def _compare(directory: Path, expected: Sequence[FileDigest], found: Sequence[FileDigest]) -> None:
    want, have = {file.name: file for file in expected}, {file.name: file for file in found}
    if missing := sorted(set(want) - set(have)):
        raise IntegrityError(f"{directory}: files are missing: {missing}")
    if extra := sorted(set(have) - set(want)):
        raise IntegrityError(f"{directory}: files were added: {extra}")
    if changed := sorted(name for name in want if want[name] != have[name]):
        raise IntegrityError(f"{directory}: files differ from what was sealed: {changed}")


def _signed_bytes(sealed: Seal) -> bytes:
    return canonical_bytes(sealed.model_dump(mode="json", exclude={"signature"}))
