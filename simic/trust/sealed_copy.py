"""Copy a sealed directory from a place that nobody vouches for."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from simic.contracts.errors import IntegrityError, TransientError
from simic.contracts.file_digest import FileDigest
from simic.trust.keys import SignatureCheck
from simic.trust.seal import MANIFEST_NAME, Seal, read_seal, verify

__all__ = ["check_size", "copy_sealed"]

_BLOCK_BYTES = 1 << 20


def copy_sealed(source: Path, target: Path, keyring: SignatureCheck, digest: str, most_bytes: int) -> Seal:
    """Copy the files that the seal of ``source`` lists into the empty directory ``target``, and verify the copy.

    Nothing is read before a trusted key is found to have signed the list, and of no file more than its sealed size.
    Symbolic links are not followed; files that are not on the list are left out.

    Raises:
        TransientError: if there is no directory at ``source``.
        IntegrityError: if it is not sealed as ``digest``, its files are together larger than ``most_bytes``, or a file
            is missing, not plain or not as sealed.
    """
    if not os.path.lexists(source):
        raise TransientError(f"{source.name} is not in {source.parent} yet; the next look tries again")
    if source.is_symlink() or not source.is_dir():
        raise IntegrityError(f"{source}: expected a directory, found something else")
    sealed = read_seal(source, keyring, digest)
    check_size(sealed, most_bytes, source)
    for file in sealed.files:
        _copy(source, target, file)
    # Written from what was verified: the file in the source may have changed since.
    (target / MANIFEST_NAME).write_text(sealed.model_dump_json(), "utf-8")
    return verify(target, keyring, digest)


def check_size(sealed: Seal, most_bytes: int, source: Path | str) -> None:
    """Raise IntegrityError if the sealed files are together larger than ``most_bytes``."""
    size_bytes = sum(file.size_bytes for file in sealed.files)
    if size_bytes > most_bytes:
        raise IntegrityError(f"{source}: expected files of at most {most_bytes} bytes, its seal says {size_bytes}")


def _copy(source: Path, target: Path, file: FileDigest) -> None:
    try:
        descriptor = os.open(source / file.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise IntegrityError(f"{source}: cannot read {file.name}: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as reader:
        status = os.fstat(reader.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size != file.size_bytes:
            raise IntegrityError(
                f"{source}: {file.name} is no plain file of {file.size_bytes} bytes, as its seal says; found "
                f"{status.st_size}"
            )
        with (target / file.name).open("xb") as writer:
            left = file.size_bytes
            while left > 0 and (block := reader.read(min(left, _BLOCK_BYTES))):
                writer.write(block)
                left -= len(block)
