"""Stores of part files: a directory or any S3-compatible object store.

The ledger, always a local file, decides which files count; a store only holds them. ``put`` is atomic and durable (a
rename on disk, a completed upload on S3), so the ledger line after it is true.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import fs as arrow_fs

from simic.contracts.errors import ConfigError, TransientError
from simic.contracts.lake_url import parse_url
from simic.runtime.files import DAMAGED, durable_file, fsync_dir, rename_durably, sha256_file

__all__ = ["CLAIM_PREFIX", "ArrowParts", "LocalParts", "PartStore", "connect_store", "link", "parse_url"]

_BLOCK_BYTES = 1024 * 1024
_PART = re.compile(r"(day=)?\d{4}-\d{2}-\d{2}/[^/]+\.parquet")
"""Earlier versions named folders ``day=...``, which pandas took for a second column ``day`` of another type."""
CLAIM_PREFIX = "simic-home."
"""First characters of the names of claims: objects below the prefix that name the home that owns the parts."""
_NO_LINKS = {errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS}
_CONNECT_S, _REQUEST_S, _ATTEMPTS = 5.0, 30.0, 3


class PartStore(Protocol):
    """Part files by name, such as ``2026-01-06/part-abc-0123456789abcdef.parquet``."""

    @property
    def place(self) -> str:
        """Directory or address of the store, for messages."""

    def put(self, unfinished: Path, name: str) -> None:
        """Move a synced local file into the store, atomically and durably."""

    def open(self, name: str) -> pa.NativeFile:
        """Open a part for random access. Raises FileNotFoundError if there is none."""

    def size_bytes(self, name: str) -> int | None:
        """Return the size of a part, or None if there is none."""

    def digest(self, name: str) -> str:
        """Return the SHA-256 of a part, in constant memory."""

    def fetch(self, name: str, target: Path) -> None:
        """Put a part into the local file ``target`` by a hard link or a copy; the folder is not synced.

        Raises FileNotFoundError if there is none.
        """

    def names(self) -> list[str]:
        """Return the names of all part files, sorted."""

    def delete(self, name: str) -> None:
        """Delete a part durably; does nothing if there is none."""

    def move_to_damaged(self, name: str) -> bool:
        """Move a part to ``damaged`` and return whether there was one."""


class LocalParts:
    """Parts in a local directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def place(self) -> str:
        """Path of the directory."""
        return str(self.root)

    def path(self, name: str) -> Path:
        """Return the path of a part, whether it exists or not."""
        return self.root / name

    def put(self, unfinished: Path, name: str) -> None:
        """Rename the file, which must be on the same file system."""
        target = self.path(name)
        with _storing(f"land {target}"):
            rename_durably(unfinished, target)

    def open(self, name: str) -> pa.NativeFile:
        """Open the file."""
        return pa.OSFile(str(self.path(name)))

    def size_bytes(self, name: str) -> int | None:
        """Return the size of the file, or None if there is none."""
        try:
            return self.path(name).stat().st_size
        except FileNotFoundError:
            return None

    def digest(self, name: str) -> str:
        """Return the SHA-256 of the file."""
        return sha256_file(self.path(name))

    def fetch(self, name: str, target: Path) -> None:
        """Hard-link the file, or copy it if the file systems differ or do not support links."""
        self.path(name).stat()
        with _storing(f"read {self.path(name)} into {target}"):
            if not link(self.path(name), target):
                with self.path(name).open("rb") as file:
                    _copy(file, target)

    def names(self) -> list[str]:
        """Return the names of all part files; unfinished ones are in another folder."""
        names = (path.relative_to(self.root).as_posix() for path in self.root.glob("*/part-*.parquet"))
        return sorted(name for name in names if _PART.fullmatch(name))

    def delete(self, name: str) -> None:
        """Unlink the file; processes that have it open can still read it."""
        with _storing(f"delete {self.path(name)}"):
            self.path(name).unlink(missing_ok=True)
            if self.path(name).parent.exists():
                fsync_dir(self.path(name).parent)

    def move_to_damaged(self, name: str) -> bool:
        """Move the file to ``damaged`` beside the directory."""
        target = self.root.with_name(DAMAGED) / name
        with _storing(f"move {self.path(name)} to {target}"):
            if not self.path(name).exists():
                return False
            rename_durably(self.path(name), target)
            fsync_dir(self.path(name).parent)
        return True


class ArrowParts:
    """Parts in a file system of Arrow with atomic uploads, such as S3."""

    def __init__(self, filesystem: arrow_fs.FileSystem, place: str) -> None:
        self.filesystem = filesystem
        self._place = place

    @property
    def place(self) -> str:
        """Address without options."""
        return self._place

    def put(self, unfinished: Path, name: str) -> None:
        """Upload the file, compare the size in the store, and delete the local file."""
        with _storing(f"write {name} to {self.place}"):
            expected = unfinished.stat().st_size
            with unfinished.open("rb") as file, self.filesystem.open_output_stream(name) as sink:
                while block := file.read(_BLOCK_BYTES):
                    sink.write(block)
            found = self.size_bytes(name)
            if found != expected:
                raise TransientError(f"{self.place}/{name}: sent {expected} bytes, the store holds {found}; try again")
            unfinished.unlink()

    def open(self, name: str) -> pa.NativeFile:
        """Open the object for range reads."""
        try:
            return self.filesystem.open_input_file(name)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _away(f"read {name} of {self.place}", error) from error

    def size_bytes(self, name: str) -> int | None:
        """Return the size that the store reports, or None if there is no such object."""
        with _storing(f"look for {name} in {self.place}"):
            info = self.filesystem.get_file_info(name)
            return int(info.size) if info.type == arrow_fs.FileType.File else None

    def digest(self, name: str) -> str:
        """Download the object and return its SHA-256."""
        digest = hashlib.sha256()
        with self.open(name) as file, _storing(f"read {name} of {self.place}"):
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
        return digest.hexdigest()

    def fetch(self, name: str, target: Path) -> None:
        """Download the object."""
        with self.open(name) as file, _storing(f"read {name} of {self.place} into {target}"):
            _copy(file, target)

    def names(self) -> list[str]:
        """Return the names of all parts below the prefix, without ``damaged``."""
        selector = arrow_fs.FileSelector("", recursive=True, allow_not_found=True)
        with _storing(f"list {self.place}"):
            names = [info.path for info in self.filesystem.get_file_info(selector) if info.is_file]
        return sorted(name for name in names if _PART.fullmatch(name))

    def delete(self, name: str) -> None:
        """Delete the object."""
        with _storing(f"delete {name} of {self.place}"):
            if self.size_bytes(name) is not None:
                self.filesystem.delete_file(name)

    def move_to_damaged(self, name: str) -> bool:
        """Copy the object to ``damaged`` below the prefix and delete it."""
        with _storing(f"move {name} of {self.place} aside"):
            if self.size_bytes(name) is None:
                return False
            self.filesystem.copy_file(name, f"{DAMAGED}/{name}")
            self.filesystem.delete_file(name)
        return True

    def claims(self) -> set[str]:
        """Return the claims of homes on the parts, see ``ownership``."""
        with _storing(f"look for the owner of {self.place}"):
            infos = self.filesystem.get_file_info(arrow_fs.FileSelector("", allow_not_found=True))
        names = [info.base_name for info in infos if info.is_file]
        return {name.removeprefix(CLAIM_PREFIX) for name in names if name.startswith(CLAIM_PREFIX)}

    def has_claim(self, claim: str) -> bool:
        """Return whether a claim is there."""
        return self.size_bytes(CLAIM_PREFIX + claim) is not None

    def add_claim(self, claim: str) -> None:
        """Add a claim durably."""
        with _storing(f"claim {self.place}"), self.filesystem.open_output_stream(CLAIM_PREFIX + claim) as sink:
            sink.write(claim.encode())

    def drop_claim(self, claim: str) -> None:
        """Delete a claim; does nothing if there is none."""
        self.delete(CLAIM_PREFIX + claim)


def connect_store(url: str) -> ArrowParts:
    """Connect to the store at an address, with credentials from the AWS environment variables."""
    base, options = parse_url(url)
    try:
        client = arrow_fs.S3FileSystem(
            connect_timeout=_CONNECT_S,
            request_timeout=_REQUEST_S,
            retry_strategy=arrow_fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
            **options,
        )
        return ArrowParts(arrow_fs.SubTreeFileSystem(base, client), f"s3://{base}")
    except pa.ArrowInvalid as error:
        raise ConfigError(f"the address of the lake s3://{base} cannot be used: {error}; see its options") from error


def link(path: Path, target: Path) -> bool:
    """Hard-link ``path`` as ``target`` and return whether the file system supports it."""
    try:
        os.link(path.resolve(), target)  # for a symbolic link, link its target
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return False
    return True


def _copy(source: IO[bytes] | pa.NativeFile, target: Path) -> None:
    with durable_file(target) as file:
        shutil.copyfileobj(source, file, _BLOCK_BYTES)


@contextmanager
def _storing(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _away(what, error) from error


def _away(what: str, error: OSError) -> TransientError:
    reason: Any = error.strerror or error
    return TransientError(f"cannot {what}: {reason}; check the store, space and permissions, and try again")
