"""Policies in an S3 store, by digest below a prefix."""

from __future__ import annotations

from pathlib import Path

from simic.contracts.errors import IntegrityError, TransientError
from simic.lake.store import ArrowParts, connect_store
from simic.trust.keys import SignatureCheck
from simic.trust.seal import MANIFEST_NAME, Seal, read_seal, verify
from simic.trust.sealed_copy import check_size

__all__ = ["StoredPolicies"]

_BLOCK_BYTES = 1 << 20
_MOST_MANIFEST_BYTES = 1 << 20


class StoredPolicies:
    """A ``PolicySource`` with credentials from the AWS environment variables."""

    def __init__(self, url: str) -> None:
        """Connect to ``s3://bucket/prefix``; raise ConfigError for an address that cannot be used."""
        self._store: ArrowParts = connect_store(url)

    def copy(self, digest: str, target: Path, keyring: SignatureCheck, most_bytes: int) -> Seal:
        place = f"{self._store.place}/{digest}"
        if (size_bytes := self._store.size_bytes(f"{digest}/{MANIFEST_NAME}")) is None:
            raise TransientError(f"{digest} is not in {self._store.place} yet; the next look tries again")
        if size_bytes > _MOST_MANIFEST_BYTES:
            raise IntegrityError(f"{place}: {MANIFEST_NAME} is longer than {_MOST_MANIFEST_BYTES} bytes")
        self._download(f"{digest}/{MANIFEST_NAME}", target / MANIFEST_NAME, size_bytes)
        # Nothing else is read before a trusted key is found to have signed the list, whose names are plain.
        sealed = read_seal(target, keyring, digest)
        check_size(sealed, most_bytes, place)
        for file in sealed.files:
            stored_bytes = self._store.size_bytes(f"{digest}/{file.name}")
            if stored_bytes != file.size_bytes:
                raise IntegrityError(f"{place}: expected {file.name} of {file.size_bytes} bytes, found {stored_bytes}")
            self._download(f"{digest}/{file.name}", target / file.name, file.size_bytes)
        return verify(target, keyring, digest)

    def _download(self, name: str, target: Path, size_bytes: int) -> None:
        """Write at most ``size_bytes`` of an object, which may have changed since its size was asked for."""
        try:
            with self._store.open(name) as reader, target.open("xb") as writer:
                while size_bytes > 0 and (block := reader.read(min(size_bytes, _BLOCK_BYTES))):
                    writer.write(block)
                    size_bytes -= len(block)
        except FileNotFoundError as error:
            raise TransientError(f"{self._store.place}/{name} vanished; the next look tries again") from error
