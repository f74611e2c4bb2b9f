"""Ed25519 keys: one private key that signs, a directory of public keys that are believed.

A key's id is the first 16 hex characters of the SHA-256 of its 32 raw public bytes. No message, log line or
representation made here holds private bytes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from simic.contracts.errors import ConfigError, IntegrityError

__all__ = ["SIGNING_KEY_VARIABLE", "Keyring", "Signer", "load_signer"]

SIGNING_KEY_VARIABLE = "SIMIC_SIGNING_KEY"
"""Environment variable: base64 of the 32-byte private seed; wins over the key file."""

_KEY_FILE = "signing.key"
_KEY_BYTES = 32
_KEY_ID = re.compile(r"[0-9a-f]{16}")
_SIGNATURE = re.compile(r"[0-9a-f]{128}")


class Signer:
    """A private key; shows nothing of itself but its id."""

    def __init__(self, private_bytes: bytes) -> None:
        if len(private_bytes) != _KEY_BYTES:
            raise ConfigError(f"a signing key has {_KEY_BYTES} bytes, found {len(private_bytes)}")
        self._key = Ed25519PrivateKey.from_private_bytes(private_bytes)
        self.public_bytes = self._key.public_key().public_bytes_raw()
        self.key_id = _key_id(self.public_bytes)

    def sign(self, message: bytes) -> str:
        """The signature in hex, 128 characters."""
        return self._key.sign(message).hex()

    def __repr__(self) -> str:
        return f"Signer({self.key_id})"


class Keyring:
    """The public keys in a directory, ``<key_id>.pub`` with 64 hex characters each."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def key_ids(self) -> tuple[str, ...]:
        """Ids of all trusted keys, sorted."""
        return tuple(sorted(path.stem for path in self._directory.glob("*.pub") if _KEY_ID.fullmatch(path.stem)))

    def trust(self, public_bytes: bytes) -> str:
        """Adds a public key [32 bytes] and returns its id; adding it twice changes nothing."""
        key_id = _key_id(public_bytes)
        path = self._directory / f"{key_id}.pub"
        if not path.exists():
            self._directory.mkdir(parents=True, exist_ok=True)
            _create_once(path, public_bytes.hex().encode() + b"\n", mode=0o644)
        return key_id

    def verify(self, key_id: str, message: bytes, signature: str) -> None:
        """Raises IntegrityError unless a trusted key of this id signed exactly these bytes."""
        if not _KEY_ID.fullmatch(key_id) or not _SIGNATURE.fullmatch(signature):
            raise IntegrityError("a key id is 16 and a signature 128 lower-case hex characters")
        try:
            Ed25519PublicKey.from_public_bytes(self._load(key_id)).verify(bytes.fromhex(signature), message)
        except InvalidSignature as error:
            raise IntegrityError(f"the signature by key {key_id} does not match what was signed") from error

    def _load(self, key_id: str) -> bytes:
        path = self._directory / f"{key_id}.pub"
        try:
            public_bytes = bytes.fromhex(path.read_text("ascii").strip())
        except FileNotFoundError as error:
            raise IntegrityError(
                f"key {key_id} is not trusted: no {path.name} in {self._directory}; "
                f"add its public key there if you know who holds it"
            ) from error
        except ValueError as error:
            raise IntegrityError(f"{path.name} does not hold a public key in hex") from error
        if _key_id(public_bytes) != key_id:
            raise IntegrityError(f"{path.name} holds another key than its name says")
        return public_bytes


def load_signer(directory: Path, env: Mapping[str, str]) -> Signer:
    """The signing key: from ``env`` if set there, else from ``directory``, where it is generated once (mode 0600).

    The public half is put beside it, so that a keyring on ``directory`` trusts what was signed here.
    """
    encoded = env.get(SIGNING_KEY_VARIABLE)
    signer = Signer(_decode_key(encoded) if encoded else _load_or_generate(directory))
    Keyring(directory).trust(signer.public_bytes)
    return signer


def _decode_key(encoded: str) -> bytes:
    try:
        return base64.b64decode(encoded.strip(), validate=True)
    except (binascii.Error, ValueError):
        # The cause is dropped: its message could quote part of the key.
        raise ConfigError(f"{SIGNING_KEY_VARIABLE} must be base64 of {_KEY_BYTES} bytes") from None


def _load_or_generate(directory: Path) -> bytes:
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = directory / _KEY_FILE
    if not path.exists():
        _create_once(path, os.urandom(_KEY_BYTES), mode=0o600)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise ConfigError(f"cannot read the signing key {path}: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077:
            raise ConfigError(f"{path} must be a plain file that only its owner may read; run: chmod 600 {path}")
        return file.read(_KEY_BYTES + 1)


def _create_once(path: Path, content: bytes, mode: int) -> None:
    """Creates a whole file or leaves the one that another process created first."""
    partial = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    try:
        path.hardlink_to(partial)
    except FileExistsError:
        pass
    finally:
        partial.unlink()


def _key_id(public_bytes: bytes) -> str:
    return hashlib.sha256(public_bytes).hexdigest()[:16]
