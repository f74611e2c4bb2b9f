"""Columns as ``.npy`` files: written piece by piece in bounded memory, described by digests, and mapped.

A folder of columns is finished when its ``columns.json`` names every file with its SHA-256, and it gets its name only
then, so that what has the name is whole.
"""

from __future__ import annotations

import mmap
import os
import shutil
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from simic.contracts.base import Contract
from simic.contracts.errors import IntegrityError
from simic.contracts.receipts import FileDigest
from simic.trust.canonical import canonical_bytes, file_sha256

__all__ = ["ColumnWriter", "ColumnsManifest", "map_column", "publish_columns", "release_pages", "verify_columns"]

MANIFEST_NAME = "columns.json"
SUFFIX = ".npy"


class ColumnsManifest(Contract):
    """Which columns a folder holds."""

    key: str
    """What they were made from, and how."""
    files: list[FileDigest]


class ColumnWriter:
    """Appends to one column after another; each file's header is brought up to date by ``close``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, IO[bytes]] = {}
        self._rows: dict[str, int] = {}
        self._like: dict[str, NDArray[Any]] = {}

    def append(self, name: str, values: NDArray[Any]) -> None:
        """Rows [R, ...] behind those that are there; shape and dtype of a row never change."""
        if name not in self._files:
            self._files[name] = (self._folder / f"{name}{SUFFIX}").open("wb+")
            self._rows[name], self._like[name] = 0, values[:0].copy()
            self._write_header(name)
        like = self._like[name]
        if values.dtype != like.dtype or values.shape[1:] != like.shape[1:]:
            raise ValueError(f"{name}: rows of {like.dtype} {like.shape[1:]}, found {values.dtype} {values.shape[1:]}")
        self._files[name].write(np.ascontiguousarray(values).data)
        self._rows[name] += len(values)

    def rows(self, name: str) -> int:
        """Written so far."""
        return self._rows.get(name, 0)

    def close(self) -> None:
        """Finish every file and sync it."""
        for name, file in self._files.items():
            file.seek(0)
            self._write_header(name)
            file.flush()
            os.fsync(file.fileno())
            file.close()
        self._files = {}

    def _write_header(self, name: str) -> None:
        """NumPy leaves room in a header for its first dimension to grow, so its length stays the same."""
        like = self._like[name]
        header = {
            "descr": np.lib.format.dtype_to_descr(like.dtype),
            "fortran_order": False,
            "shape": (self._rows[name], *like.shape[1:]),
        }
        np.lib.format.write_array_header_1_0(self._files[name], header)


def publish_columns(built: Path, target: Path, key: str) -> None:
    """Describe a finished folder and give it its name; what stands there whole already is kept instead."""
    files = [
        FileDigest(name=path.name, sha256=file_sha256(path), size_bytes=path.stat().st_size)
        for path in sorted(built.iterdir())
    ]
    with (built / MANIFEST_NAME).open("wb") as file:
        file.write(canonical_bytes(ColumnsManifest(key=key, files=files)))
        file.flush()
        os.fsync(file.fileno())
    try:
        built.rename(target)
    except OSError:
        # Another process was first; both wrote the same.
        verify_columns(target, key)
        shutil.rmtree(built)


def verify_columns(folder: Path, key: str) -> None:
    """Raises IntegrityError unless every file is as it was published, under the same key."""
    try:
        manifest = ColumnsManifest.model_validate_json((folder / MANIFEST_NAME).read_bytes())
    except (OSError, ValidationError) as error:
        raise IntegrityError(f"{folder} is no folder of columns: {MANIFEST_NAME} cannot be read ({error})") from error
    if manifest.key != key:
        raise IntegrityError(f"{folder} holds columns of {manifest.key}, expected {key}")
    for file in manifest.files:
        path = folder / file.name
        if not path.is_file() or file_sha256(path) != file.sha256:
            raise IntegrityError(f"{path} is not what was written: expected SHA-256 {file.sha256}")


def map_column(folder: Path, name: str) -> NDArray[Any]:
    """A column of a verified folder. Copy on write: nothing written to it reaches the file."""
    path = folder / f"{name}{SUFFIX}"
    array: NDArray[Any] = np.load(path, mmap_mode="c", allow_pickle=False)
    return array


def release_pages(column: NDArray[Any]) -> None:
    """Give back the memory of a mapped column; the next access reads the file again."""
    if isinstance(base := column.base, mmap.mmap):
        base.madvise(mmap.MADV_DONTNEED)
