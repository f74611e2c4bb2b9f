"""Where the files of parts lie: a directory, or any S3-compatible store.

A store holds files and decides nothing: which of them count is the ledger's business, which always is a local file.
``put`` makes a file whole and durable or leaves none, so that the ledger line after it tells the truth: a rename on
disk, a finished upload on S3. Moving a file aside is a rename there, and a copy and a deletion here.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import fs as arrow_fs

from simic.contracts.errors import ConfigError, TransientError
from simic.contracts.lake_url import parse_url
from simic.runtime.durable import sync_folder

__all__ = ["ArrowParts", "LocalParts", "PartStore", "connect_store", "link", "parse_url"]

_BLOCK_BYTES = 1024 * 1024
_ASIDE = "damaged"
_OWNER = "simic-home"
"""Object below the prefix that names the home whose parts these are."""
_NO_LINKS = {errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS}
_CONNECT_S, _REQUEST_S, _ATTEMPTS = 5.0, 30.0, 3


class PartStore(Protocol):
    """Files by name, such as ``day=2026-01-06/part-abc-0123456789abcdef.parquet``."""

    @property
    def place(self) -> str:
        """For messages."""

    def put(self, unfinished: Path, name: str) -> None:
        """Takes over a local file, synced and closed: whole and durable under its name when this returns."""

    def open(self, name: str) -> pa.NativeFile:
        """For reading anywhere in it; FileNotFoundError where there is none."""

    def size_bytes(self, name: str) -> int | None:
        """None where there is none."""

    def digest(self, name: str) -> str:
        """SHA-256 of what is there, in constant memory."""

    def fetch(self, name: str, target: Path) -> None:
        """Into a local file, durable but for its folder: a second name for the same file where it can be.

        FileNotFoundError where there is none.
        """

    def names(self) -> list[str]:
        """Every part file, sorted."""

    def delete(self, name: str) -> None:
        """Durably; nothing happens where there is none."""

    def set_aside(self, name: str) -> bool:
        """Out of the way of a sound file of that name; false where there was none."""


class LocalParts:
    """A directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def place(self) -> str:
        """The directory."""
        return str(self.root)

    def path(self, name: str) -> Path:
        """Where a part lies or would lie."""
        return self.root / name

    def put(self, unfinished: Path, name: str) -> None:
        """A rename, so the file must lie on the same file system."""
        target = self.path(name)
        with _storing(f"land {target}"):
            is_new_folder = not target.parent.exists()
            target.parent.mkdir(parents=True, exist_ok=True)
            unfinished.replace(target)
            sync_folder(target.parent)
            if is_new_folder:
                sync_folder(self.root)

    def open(self, name: str) -> pa.NativeFile:
        """The file."""
        return pa.OSFile(str(self.path(name)))

    def size_bytes(self, name: str) -> int | None:
        """Of the file."""
        try:
            return self.path(name).stat().st_size
        except FileNotFoundError:
            return None

    def digest(self, name: str) -> str:
        """Of the file."""
        with self.path(name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def fetch(self, name: str, target: Path) -> None:
        """A hard link; a copy on another file system, or where links are not to be had."""
        self.path(name).stat()
        with _storing(f"read {self.path(name)} into {target}"):
            if not link(self.path(name), target):
                with self.path(name).open("rb") as file:
                    _copy(file, target)

    def names(self) -> list[str]:
        """Unfinished files lie elsewhere."""
        return sorted(path.relative_to(self.root).as_posix() for path in self.root.glob("day=*/part-*.parquet"))

    def delete(self, name: str) -> None:
        """Unlinks; a reader that has the file open keeps it."""
        with _storing(f"delete {self.path(name)}"):
            self.path(name).unlink(missing_ok=True)
            if self.path(name).parent.exists():
                sync_folder(self.path(name).parent)

    def set_aside(self, name: str) -> bool:
        """To ``damaged`` beside the directory."""
        target = self.root.with_name(_ASIDE) / name
        with _storing(f"move {self.path(name)} to {target}"):
            if not self.path(name).exists():
                return False
            target.parent.mkdir(parents=True, exist_ok=True)
            self.path(name).replace(target)
            sync_folder(self.path(name).parent)
        return True


class ArrowParts:
    """Any file system that Arrow knows whose finished uploads are atomic; S3 above all."""

    def __init__(self, filesystem: arrow_fs.FileSystem, place: str) -> None:
        self.filesystem = filesystem
        self._place = place

    @property
    def place(self) -> str:
        """The address, without options."""
        return self._place

    def put(self, unfinished: Path, name: str) -> None:
        """Uploads, asks how much arrived, and deletes the local file."""
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
        """Reads by ranges."""
        try:
            return self.filesystem.open_input_file(name)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _away(f"read {name} of {self.place}", error) from error

    def size_bytes(self, name: str) -> int | None:
        """As the store tells it."""
        with _storing(f"look for {name} in {self.place}"):
            info = self.filesystem.get_file_info(name)
            return int(info.size) if info.type == arrow_fs.FileType.File else None

    def digest(self, name: str) -> str:
        """Reads it all."""
        digest = hashlib.sha256()
        with self.open(name) as file, _storing(f"read {name} of {self.place}"):
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
        return digest.hexdigest()

    def fetch(self, name: str, target: Path) -> None:
        """A download."""
        with self.open(name) as file, _storing(f"read {name} of {self.place} into {target}"):
            _copy(file, target)

    def names(self) -> list[str]:
        """Below the prefix; what was set aside does not count."""
        selector = arrow_fs.FileSelector("", recursive=True, allow_not_found=True)
        with _storing(f"list {self.place}"):
            found = [info.path for info in self.filesystem.get_file_info(selector) if info.is_file]
        return sorted(name for name in found if name.startswith("day=") and name.endswith(".parquet"))

    def delete(self, name: str) -> None:
        """One request."""
        with _storing(f"delete {name} of {self.place}"):
            if self.size_bytes(name) is not None:
                self.filesystem.delete_file(name)

    def set_aside(self, name: str) -> bool:
        """To ``damaged`` below the prefix."""
        with _storing(f"move {name} of {self.place} aside"):
            if self.size_bytes(name) is None:
                return False
            self.filesystem.copy_file(name, f"{_ASIDE}/{name}")
            self.filesystem.delete_file(name)
        return True

    def owner(self) -> str | None:
        """Id of the home whose parts these are; None where no home has said so."""
        with _storing(f"look for the owner of {self.place}"):
            if self.size_bytes(_OWNER) is None:
                return None
            with self.filesystem.open_input_file(_OWNER) as file:
                return str(file.read().decode("ascii", "replace").strip())

    def own(self, owner: str) -> None:
        """Says whose parts these are."""
        with _storing(f"write the owner of {self.place}"), self.filesystem.open_output_stream(_OWNER) as sink:
            sink.write(owner.encode())


def connect_store(url: str) -> ArrowParts:
    """The store at an address; credentials come from the environment, as every AWS tool reads them."""
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
    """Gives a file a second name; false where the file system has none to give."""
    try:
        os.link(path.resolve(), target)  # of a symbolic link, what it names
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return False
    return True


def _copy(source: IO[bytes] | pa.NativeFile, target: Path) -> None:
    with target.open("wb") as file:
        shutil.copyfileobj(source, file, _BLOCK_BYTES)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _storing(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _away(what, error) from error


def _away(what: str, error: OSError) -> TransientError:
    reason: Any = error.strerror or error
    return TransientError(f"cannot {what}: {reason}; check the store, space and permissions, and try again")
