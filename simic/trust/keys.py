"""Ed25519 keys: one private key that signs, a directory of trusted public keys, a list of revoked ones.

A key's id is the first 16 hex characters of the SHA-256 of its 32 raw public bytes. No message, log line or
representation made here holds private bytes.
"""

from __future__ import annotations

import base64
import binascii
import os
import stat
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from simic.contracts.errors import ConfigError, IntegrityError
from simic.runtime.files import create_once, fsync_dir
from simic.runtime.private_files import write_private
from simic.trust.ed25519 import KEY_ID, check_form, check_signature, key_id_of
from simic.trust.revocation import FORMER_SUFFIX, Revocation, Revocations, read_revocations

__all__ = [
    "HOW_TO_MAKE",
    "SIGNING_KEY_VARIABLE",
    "GivenKeys",
    "Keyring",
    "SignatureCheck",
    "Signer",
    "check_signer",
    "is_key_given",
    "load_signer",
    "present_signer",
    "replace_key",
    "weakness",
]

HOW_TO_MAKE = "`openssl rand -base64 32` makes a proper one"

_MIN_DISTINCT = 13
"""A random seed has fewer different bytes with probability below 2**-70."""
_LONGEST_RUN = 8
"""A random seed has as many equal bytes in a row with probability below 2**-50."""
_TEXT = frozenset(range(0x20, 0x7F)) | frozenset(b"\t\n\r")


def weakness(seed: bytes) -> str | None:
    """Return why a seed [32 bytes] cannot be random; None if it may be.

    A random seed is refused with probability below 2**-40. A seed derived from a password is not detected.
    """
    if len(set(seed)) == 1:
        return "all bytes are zero" if seed[0] == 0 else "all bytes are equal"
    for period in range(1, len(seed) // 2 + 1):
        if seed[period:] == seed[:-period]:
            return f"the same {period} bytes repeat"
    steps = {(after - before) % 256 for before, after in pairwise(seed)}
    if len(steps) == 1:
        return "the bytes count up or down"
    if _TEXT.issuperset(seed.rstrip(b"\0")):
        return "it is printable text"
    if any(len(set(seed[start : start + _LONGEST_RUN])) == 1 for start in range(len(seed) - _LONGEST_RUN + 1)):
        return f"{_LONGEST_RUN} equal bytes stand in a row"
    if len(set(seed)) < _MIN_DISTINCT:
        return f"it has only {len(set(seed))} different bytes"
    return None


SIGNING_KEY_VARIABLE = "SIMIC_SIGNING_KEY"
"""Environment variable with base64 of the 32-byte private seed; takes precedence over the key file."""
KEY_FILE = "signing.key"
_KEY_BYTES = 32


class Signer:
    """A private key that reveals nothing but its id."""

    def __init__(self, private_bytes: bytes, keyring: Keyring | None = None) -> None:
        """Load a key; ``keyring`` is asked before each signature whether it was revoked."""
        self._keyring = keyring
        if len(private_bytes) != _KEY_BYTES:
            raise ConfigError(f"a signing key has {_KEY_BYTES} bytes, found {len(private_bytes)}")
        self._key = Ed25519PrivateKey.from_private_bytes(private_bytes)
        self.public_bytes = self._key.public_key().public_bytes_raw()
        self.key_id = key_id_of(self.public_bytes)

    def sign(self, message: bytes) -> str:
        """Return the signature in hex, 128 characters; raises ConfigError if the key was revoked."""
        if self._keyring is not None:
            check_signer(self, self._keyring)
        return self._key.sign(message).hex()

    def __repr__(self) -> str:
        return f"Signer({self.key_id})"


class Keyring:
    """The public keys in a directory, ``<key_id>.pub`` with 64 hex characters each, except revoked ones.

    Every call reads the directory again, so a revocation takes effect as soon as it is written. Every call raises
    IntegrityError while the revocation list is damaged.
    """

    def __init__(
        self, directory: Path, *, accepts_revoked: bool = False, revocations: Revocations | None = None
    ) -> None:
        """Read a directory. Set ``accepts_revoked`` only to identify a signer, never for data that is used.

        ``revocations`` replaces the list if the caller has read it.
        """
        self._directory = directory
        self._accepts_revoked, self._revocations = accepts_revoked, revocations

    def key_ids(self) -> tuple[str, ...]:
        """Return the ids of all trusted keys, sorted."""
        revoked = self.revocations().by_key
        return tuple(sorted(key_id for key_id in self.lying() if key_id not in revoked))

    def lying(self) -> tuple[str, ...]:
        """Return the ids of all public keys in the directory, sorted, revoked or not."""
        return tuple(sorted(path.stem for path in self._directory.glob("*.pub") if KEY_ID.fullmatch(path.stem)))

    def revocations(self) -> Revocations:
        """Return the revocation list of this directory."""
        return self._revocations or read_revocations(self._directory)

    def including_revoked(self) -> Keyring:
        """Return a keyring that also identifies revoked signers; it keeps the present list."""
        return Keyring(self._directory, accepts_revoked=True, revocations=self.revocations())

    def trust(self, public_bytes: bytes) -> str:
        """Add a public key [32 bytes] and return its id; adding it twice changes nothing.

        Raises IntegrityError for a key that was revoked.
        """
        key_id = key_id_of(public_bytes)
        if (revocation := self.revocations().by_key.get(key_id)) is not None:
            raise IntegrityError(f"{_described(revocation)}; it is not trusted again")
        path = self._directory / f"{key_id}.pub"
        if not path.exists():
            self._directory.mkdir(parents=True, exist_ok=True)
            create_once(path, public_bytes.hex().encode() + b"\n", mode=0o644)
        return key_id

    def distrust(self, key_id: str) -> None:
        """Rename the public key of a revoked key: it verifies nothing any more, but its own revocations stay valid.

        Raises IntegrityError if the file cannot be moved.
        """
        path = self._directory / f"{key_id}.pub"
        try:
            try:
                self.public_bytes(key_id)
            except IntegrityError:
                path.unlink(missing_ok=True)  # the file does not hold that key, so it proves nothing
            else:
                path.replace(path.with_suffix(FORMER_SUFFIX))
        except OSError as error:
            raise IntegrityError(f"cannot take {path} away: {error.strerror}; move it elsewhere") from error
        if self._directory.exists():
            fsync_dir(self._directory)

    def verify(self, key_id: str, message: bytes, signature: str) -> None:
        """Raise IntegrityError unless the trusted, unrevoked key of this id signed exactly these bytes."""
        check_form(key_id, signature)
        revocation = self.revocations().by_key.get(key_id)
        if revocation is None:
            public_bytes = self.public_bytes(key_id)
        elif self._accepts_revoked:
            public_bytes = self._public_of_revoked(revocation)
        else:
            raise IntegrityError(
                f"{_described(revocation)}, so what it signed is not trusted; `simic keys reseal` signs again what the "
                f"journal of promotions names"
            )
        check_signature(public_bytes, message, signature)

    def public_bytes(self, key_id: str) -> bytes:
        """Return the public key of an id [32 bytes], revoked or not.

        Raises IntegrityError if there is none, or if the file holds another key than its name says.
        """
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
        except OSError as error:
            raise IntegrityError(f"cannot read the public key {path}: {error.strerror}") from error
        if key_id_of(public_bytes) != key_id:
            raise IntegrityError(f"{path.name} holds another key than its name says")
        return public_bytes

    def _public_of_revoked(self, revocation: Revocation) -> bytes:
        if revocation.public_key is None:
            raise IntegrityError(
                f"{_described(revocation)}; its public key was never here, so nothing it signed verifies"
            )
        return bytes.fromhex(revocation.public_key)


class SignatureCheck(Protocol):
    """Knows which keys are trusted."""

    def verify(self, key_id: str, message: bytes, signature: str) -> None:
        """Raise IntegrityError unless the trusted key of this id signed exactly these bytes."""


class GivenKeys:
    """Public keys [32 bytes each] that the caller trusts, wherever they come from; none of them can be revoked."""

    def __init__(self, public_keys: Iterable[bytes]) -> None:
        self._by_id = {key_id_of(public_bytes): public_bytes for public_bytes in public_keys}

    def verify(self, key_id: str, message: bytes, signature: str) -> None:
        """Raise IntegrityError unless the given key of this id signed exactly these bytes."""
        check_form(key_id, signature)
        if key_id not in self._by_id:
            raise IntegrityError(
                f"key {key_id} is not trusted: expected one of {', '.join(sorted(self._by_id)) or 'no keys'}; "
                "give its public key too if you know who holds it"
            )
        check_signature(self._by_id[key_id], message, signature)


def check_signer(signer: Signer, keyring: Keyring) -> None:
    """Raise ConfigError if the signer's key is revoked now; a process may have loaded it earlier."""
    if (revocation := keyring.revocations().by_key.get(signer.key_id)) is not None:
        raise ConfigError(
            f"{_described(revocation)}, after this process had loaded it; it signs nothing more. Start the command "
            f"again: it loads the present key"
        )


def is_key_given(env: Mapping[str, str]) -> bool:
    """Return whether ``env`` holds the signing key.

    Raises ConfigError for an empty value: a secret that was not filled in must not select the key file instead.
    """
    encoded = env.get(SIGNING_KEY_VARIABLE)
    if encoded is not None and not encoded.strip():
        raise ConfigError(
            f"{SIGNING_KEY_VARIABLE} is empty: expected base64 of {_KEY_BYTES} bytes. Put the key there "
            f"({HOW_TO_MAKE}), or unset the variable to use the key of this home"
        )
    return encoded is not None


def load_signer(directory: Path, env: Mapping[str, str]) -> Signer:
    """Return the signing key from ``env``, else from ``directory``, where it is generated once (mode 0600).

    The public half is written beside it, so that a keyring on ``directory`` trusts its signatures. Raises ConfigError,
    which says what to do, for a key that was revoked or is not random.
    """
    is_given = is_key_given(env)
    if not is_given:
        _generate_once(directory)
    signer = present_signer(directory, env)
    if signer is None:
        raise ConfigError(f"{directory / KEY_FILE} disappeared while it was read; try again")
    keyring = Keyring(directory)
    if (revocation := keyring.revocations().by_key.get(signer.key_id)) is not None:
        what = SIGNING_KEY_VARIABLE if is_given else str(directory / KEY_FILE)
        remedy = (
            f"put another seed there ({HOW_TO_MAKE}), or unset it to use a key of this home"
            if is_given
            else "`simic keys rotate` makes another"
        )
        raise ConfigError(f"{what} holds a revoked key: {_described(revocation)}. It signs nothing more: {remedy}")
    keyring.trust(signer.public_bytes)
    return signer


def present_signer(directory: Path, env: Mapping[str, str]) -> Signer | None:
    """Return the key in ``env`` or ``directory``, revoked or not; None if there is none. Creates no key.

    Raises ConfigError for a key that is malformed, readable by others, or not random.
    """
    if is_key_given(env):
        remedy = f"put another one there: {HOW_TO_MAKE}"
        return _proper(_decode_key(env[SIGNING_KEY_VARIABLE]), SIGNING_KEY_VARIABLE, remedy, directory)
    path = directory / KEY_FILE
    if not path.exists() and not path.is_symlink():
        return None
    return _proper(_read_key(path), str(path), "`simic keys rotate` makes another", directory)


def replace_key(directory: Path) -> Signer:
    """Replace the signing key by a new one, whose public half is trusted first; the old one is deleted."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    private_bytes = os.urandom(_KEY_BYTES)
    signer = Signer(private_bytes, Keyring(directory))
    Keyring(directory).trust(signer.public_bytes)
    write_private(directory / KEY_FILE, private_bytes)
    fsync_dir(directory)
    return signer


def _proper(private_bytes: bytes, what: str, remedy: str, directory: Path) -> Signer:
    signer = Signer(private_bytes, Keyring(directory))
    if (fault := weakness(private_bytes)) is not None:
        raise ConfigError(f"{what} does not hold a random seed: {fault}; {remedy}")
    return signer


def _described(revocation: Revocation) -> str:
    return f"key {revocation.revoked} was revoked on {revocation.at:%Y-%m-%d %H:%M} UTC ({revocation.reason})"


def _decode_key(encoded: str) -> bytes:
    try:
        return base64.b64decode(encoded.strip(), validate=True)
    except (binascii.Error, ValueError):
        # The cause is dropped: its message could quote part of the key.
        raise ConfigError(f"{SIGNING_KEY_VARIABLE} must be base64 of {_KEY_BYTES} bytes; {HOW_TO_MAKE}") from None


def _generate_once(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = directory / KEY_FILE
    if not path.exists():
        create_once(path, os.urandom(_KEY_BYTES))


def _read_key(path: Path) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a named pipe would wait for a writer
    except OSError as error:
        raise ConfigError(f"cannot read the signing key {path}: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077:
            raise ConfigError(f"{path} must be a plain file that only its owner may read; run: chmod 600 {path}")
        return file.read(_KEY_BYTES + 1)
