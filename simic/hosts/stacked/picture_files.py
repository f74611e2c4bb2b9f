"""Pictures and labels out of files that a user names, reduced to grey 8x8.

What a file claims is checked against bounds before anything is decoded, and nothing in it is ever executed: no
pickles. Colours become luma (ITU-R BT.601); every one of the 8x8 cells is the mean of the area it covers.
Shapes: n pictures, H x W pixels, C colours.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from simic.contracts.errors import DatasetError
from simic.hosts.stacked.anatomy import IMAGE

__all__ = ["MAX_ARRAY_BYTES", "MAX_FILES", "MAX_FILE_BYTES", "MAX_PIXELS", "Album", "read_album"]

MAX_ARRAY_BYTES = 2**30
"""Of one array of a NumPy file, unpacked."""
MAX_FILES = 100_000
"""Pictures in a folder or an archive."""
MAX_FILE_BYTES = 16 * 2**20
"""Of one picture file."""
MAX_PIXELS = 2**24
"""Of one picture."""
_LUMA = np.array([0.299, 0.587, 0.114])
_AT_A_TIME = 2**22
"""Numbers turned into floats at a time."""
_SUFFIXES = frozenset({".png", ".jpg", ".jpeg"})
_BROKEN = (OSError, EOFError, ValueError, SyntaxError, RuntimeError, struct.error, zlib.error, zipfile.BadZipFile)
"""What decoders raise for bytes that are not what they claim."""


class Album(NamedTuple):
    """All pictures of a user."""

    images: NDArray[np.float64]
    """[n, 8, 8], finite."""
    classes: list[str]
    """[n]"""


def read_album(path: Path) -> Album:
    """A folder of class folders with PNG and JPEG files, or an ``.npz`` with ``data`` or ``images``, and ``labels``.

    Arrays hold uint8 or floats: [n, 3072] as CIFAR has it, [n, C, H, W], [n, H, W, C] with C of 1 or 3, or [n, H, W].
    Hidden files, and files of a folder with another suffix, are passed over. Whatever else is wrong is a DatasetError.
    """
    if not path.exists():
        raise DatasetError(f"pictures: expected a folder or an .npz file, found nothing at {path}; see world.images")
    album = _read_folder(path) if path.is_dir() else _read_archive(path)
    if not np.isfinite(album.images).all():
        bad = int(np.flatnonzero(~np.isfinite(album.images).all(axis=(1, 2)))[0])
        raise DatasetError(f"pictures {path}: expected finite pixels, found NaN or infinity in picture {bad}")
    return album


def _reduced(pictures: NDArray[np.float64]) -> NDArray[np.float64]:
    """[n, H, W] as [n, 8, 8]."""
    rows, columns = (_areas(size) for size in pictures.shape[1:])
    with np.errstate(invalid="ignore", over="ignore"):
        small: NDArray[np.float64] = rows @ pictures @ columns.T
    return small


def _areas(size: int) -> NDArray[np.float64]:
    """[8, size]: the share of each cell that a pixel covers."""
    edges, pixels = np.arange(IMAGE + 1) * (size / IMAGE), np.arange(size)
    overlap = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    areas: NDArray[np.float64] = np.maximum(overlap, 0.0) * (IMAGE / size)
    return areas


def _check_size(height: int, width: int, name: str) -> None:
    if min(height, width) < IMAGE or height * width > MAX_PIXELS:
        raise DatasetError(
            f"{name}: expected at least {IMAGE}x{IMAGE} and at most {MAX_PIXELS} pixels, found {height}x{width}"
        )


def _read_archive(path: Path) -> Album:
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
            pixels = "data" if "data.npy" in names else "images"
            if not {f"{pixels}.npy", "labels.npy"} <= names:
                raise DatasetError(
                    f"pictures {path}: expected the arrays data or images, and labels, found {sorted(names)[:8]}; "
                    "write them with numpy.savez"
                )
            arrays = [_array(archive, name, path) for name in (pixels, "labels")]
    except _BROKEN as error:
        raise DatasetError(f"pictures {path}: expected a whole .npz file of numpy.savez, found {error}") from error
    pictures, labels = arrays
    if labels.dtype.kind not in "iu" or labels.shape != pictures.shape[:1]:
        raise DatasetError(
            f"pictures {path}: expected one whole number per picture in labels, found {labels.dtype} {labels.shape} "
            f"for {pictures.dtype} {pictures.shape}"
        )
    if pictures.dtype != np.uint8 and pictures.dtype.kind != "f":
        raise DatasetError(f"pictures {path}: expected pixels in uint8 or floats, found {pictures.dtype}")
    grey = list(_grey_parts(pictures, path))
    return Album(np.concatenate([np.empty((0, IMAGE, IMAGE)), *grey]), [str(label) for label in labels.tolist()])


def _array(archive: zipfile.ZipFile, name: str, path: Path) -> NDArray[Any]:
    with archive.open(f"{name}.npy") as member:
        shape, is_fortran, dtype = _header(member)
        size = int(np.prod(shape, dtype=object)) * dtype.itemsize
        is_odd = min(shape, default=0) < 0 or len(shape) > 4 or max(shape[:1], default=0) > MAX_FILES
        if dtype.hasobject or is_odd or size > MAX_ARRAY_BYTES:
            raise DatasetError(
                f"pictures {path}: expected plain numbers in {name}, at most {MAX_ARRAY_BYTES} bytes of them for at "
                f"most {MAX_FILES} pictures, found {dtype} {shape}"
            )
        content = member.read(size)
    if len(content) != size:
        raise DatasetError(f"pictures {path}: expected {size} bytes in {name}, found {len(content)}; is it cut off?")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if is_fortran else "C")


def _header(member: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Format 1.0, whose header is 64 KiB at most, is what NumPy writes for plain numbers."""
    version = npy.read_magic(member)
    if version == (1, 0):
        return npy.read_array_header_1_0(member)
    raise ValueError(f"an array in format version {version}, not 1.0")


def _grey_parts(pictures: NDArray[Any], path: Path) -> Iterator[NDArray[np.float64]]:
    """[m, 8, 8] of some pictures at a time."""
    if pictures.ndim == 2 and pictures.shape[1] == 3072:
        pictures = pictures.reshape(-1, 3, 32, 32)
    if pictures.ndim == 3:
        pictures = pictures[:, None]
    if pictures.ndim == 4 and pictures.shape[1] not in (1, 3):
        pictures = np.moveaxis(pictures, 3, 1)
    if pictures.ndim != 4 or pictures.shape[1] not in (1, 3):
        raise DatasetError(
            f"pictures {path}: expected [n, 3072], [n, C, H, W], [n, H, W, C] or [n, H, W], found {pictures.shape}"
        )
    _check_size(pictures.shape[2], pictures.shape[3], f"pictures {path}")
    weights = _LUMA if pictures.shape[1] == 3 else np.ones(1)
    step = max(1, _AT_A_TIME // int(np.prod(pictures.shape[1:])))
    for start in range(0, len(pictures), step):
        part = pictures[start : start + step].astype(np.float64)
        yield _reduced(sum(weight * part[:, colour] for colour, weight in enumerate(weights)))


def _read_folder(path: Path) -> Album:
    files, classes = [], []
    for folder in sorted(one for one in path.iterdir() if one.is_dir() and not one.name.startswith(".")):
        for file in sorted(folder.iterdir()):
            if file.suffix.lower() in _SUFFIXES and not file.name.startswith("."):
                files.append(file)
                classes.append(folder.name)
        if len(files) > MAX_FILES:
            raise DatasetError(f"pictures {path}: expected at most {MAX_FILES} files, found more")
    images = [_read_picture(file) for file in files]
    return Album(np.array(images).reshape(-1, IMAGE, IMAGE), classes)


def _read_picture(file: Path) -> NDArray[np.float64]:
    """[8, 8]"""
    from PIL import Image

    size = file.stat().st_size if file.is_file() else 0
    if not 0 < size <= MAX_FILE_BYTES:
        raise DatasetError(f"picture {file}: expected a file of at most {MAX_FILE_BYTES} bytes, found {size}")
    try:
        with Image.open(file, formats=("PNG", "JPEG")) as picture:
            _check_size(picture.height, picture.width, f"picture {file}")
            # Deep grey would be cut off at 255 by a conversion.
            is_deep = picture.mode[0] in "IF"
            grey = np.asarray(picture if is_deep else picture.convert("L"), dtype=np.float64)
            small: NDArray[np.float64] = _reduced(grey[None] / (257.0 if is_deep else 1.0))[0]
            return small
    except (*_BROKEN, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DatasetError(f"picture {file}: expected a whole PNG or JPEG file, found {error}") from error
