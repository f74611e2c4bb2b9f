"""Images of the user in place of the digits, read from a folder or an ``.npz`` file.

Images that are equal once reduced to 8x8 count once, so none can be in two splits. They are ordered by the hash of
their content; at most as many as there are digits are used, in the digits' proportions. The order and the names of
files do not matter, except that classes are numbered by name, short names first.

Shapes: n images.
"""

from __future__ import annotations

import hashlib
import struct
import zipfile
import zlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from PIL import Image

from simic.contracts.errors import DatasetError
from simic.hosts.batched.data import POOL_SIZES, Pool, PoolOf, cut_pools
from simic.hosts.batched.sizes import CLASSES, IMAGE
from simic.hosts.interfaces import DataSplit

__all__ = [
    "MAX_ARRAY_BYTES",
    "MAX_FILES",
    "MAX_FILE_BYTES",
    "MAX_PIXELS",
    "MIN_PICTURES",
    "Album",
    "Pictures",
    "load_pictures",
    "pictures_digest",
    "pool_source",
    "read_album",
]

MAX_ARRAY_BYTES = 2**30
"""Largest size in bytes of one uncompressed array of a NumPy file."""
MAX_FILES = 100_000
"""Largest number of images in a folder or an archive."""
MAX_FILE_BYTES = 16 * 2**20
"""Largest size in bytes of one image file."""
MAX_PIXELS = 2**24
"""Largest number of pixels of one image."""
_LUMA = np.array([0.299, 0.587, 0.114])
_AT_A_TIME = 2**22
"""Number of values converted to floats at a time."""
_SUFFIXES = frozenset({".png", ".jpg", ".jpeg"})
_BROKEN = (OSError, EOFError, ValueError, SyntaxError, RuntimeError, struct.error, zlib.error, zipfile.BadZipFile)
"""Errors of decoders for malformed files."""


class Album(NamedTuple):
    """All pictures of a folder or archive."""

    images: NDArray[np.float64]
    """[n, 8, 8], finite."""
    classes: list[str]
    """[n]"""


def read_album(path: Path) -> Album:
    """A folder of class folders with PNG and JPEG files, or an ``.npz`` with ``data`` or ``images``, and ``labels``.

    Arrays hold uint8 or floats: [n, 3072] as CIFAR has it, [n, C, H, W], [n, H, W, C] with C of 1 or 3, or [n, H, W].
    Hidden files, and files of a folder with another suffix, are skipped.

    Raises:
        DatasetError: for anything else that is malformed or too large.
    """
    if not path.exists():
        raise DatasetError(f"pictures: expected a folder or an .npz file, found nothing at {path}; see world.images")
    album = _read_folder(path) if path.is_dir() else _read_archive(path)
    if not np.isfinite(album.images).all():
        bad = int(np.flatnonzero(~np.isfinite(album.images).all(axis=(1, 2)))[0])
        raise DatasetError(f"pictures {path}: expected finite pixels, found NaN or infinity in picture {bad}")
    return album


def _reduced(pictures: NDArray[np.float64]) -> NDArray[np.float64]:
    """Average [n, H, W] down to [n, 8, 8]."""
    rows, columns = (_areas(size) for size in pictures.shape[1:])
    with np.errstate(invalid="ignore", over="ignore"):
        small: NDArray[np.float64] = rows @ pictures @ columns.T
    return small


def _areas(size: int) -> NDArray[np.float64]:
    """Return [8, size]: the share of each cell that a pixel covers."""
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
        raise DatasetError(f"pictures {path}: expected an intact .npz file of numpy.savez, found {error}") from error
    pictures, labels = arrays
    if labels.dtype.kind not in "iu" or labels.shape != pictures.shape[:1]:
        raise DatasetError(
            f"pictures {path}: expected one integer per picture in labels, found {labels.dtype} {labels.shape} "
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
    """Yield grey pictures [m, 8, 8], some at a time."""
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
    for folder in sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith(".")):
        for file in sorted(folder.iterdir()):
            if file.suffix.lower() in _SUFFIXES and not file.name.startswith("."):
                files.append(file)
                classes.append(folder.name)
        if len(files) > MAX_FILES:
            raise DatasetError(f"pictures {path}: expected at most {MAX_FILES} files, found more")
    images = [_read_picture(file) for file in files]
    return Album(np.array(images).reshape(-1, IMAGE, IMAGE), classes)


def _read_picture(file: Path) -> NDArray[np.float64]:
    """Return one picture as grey [8, 8]."""
    size = file.stat().st_size if file.is_file() else 0
    if not 0 < size <= MAX_FILE_BYTES:
        raise DatasetError(f"picture {file}: expected a file of at most {MAX_FILE_BYTES} bytes, found {size}")
    try:
        with Image.open(file, formats=("PNG", "JPEG")) as picture:
            _check_size(picture.height, picture.width, f"picture {file}")
            # A conversion would clip 16-bit grey at 255.
            is_deep = picture.mode[0] in "IF"
            grey = np.asarray(picture if is_deep else picture.convert("L"), dtype=np.float64)
            small: NDArray[np.float64] = _reduced(grey[None] / (257.0 if is_deep else 1.0))[0]
            return small
    except (*_BROKEN, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DatasetError(f"picture {file}: expected an intact PNG or JPEG file, found {error}") from error


MIN_PICTURES = 400
"""Least number of distinct pictures; smaller pools give results too noisy to compare."""
_ALL = sum(POOL_SIZES.values())


class Pictures(NamedTuple):
    """Image pools made from images of the user."""

    pools: dict[DataSplit, Pool]
    digest: str
    """SHA-256 over the used pictures and labels, independent of their files."""


def load_pictures(path: str) -> Pictures:
    """Return the pictures at a path, read once per process unless they change; raise DatasetError if unusable."""
    root = Path(path)
    try:
        watched = sorted(root.glob("*/*")) if root.is_dir() else [root]
        stats = [file.stat() for file in watched if file.exists()]
    except (OSError, ValueError) as error:
        raise DatasetError(f"pictures: {path[:80]!r} cannot be read: {error}") from error
    return _load(path, tuple((status.st_mtime_ns, status.st_size, status.st_ino) for status in stats))


def pool_source(path: str | None) -> PoolOf | None:
    """Return the pools for ``world.images``; None means the digits."""
    return None if path is None else load_pictures(path).pools.__getitem__


def pictures_digest(path: str | None) -> str | None:
    """Return the digest of the images for ``world.images``; None means the digits."""
    return None if path is None else load_pictures(path).digest


@lru_cache(maxsize=1)
def _load(path: str, _seen: tuple[tuple[int, int, int], ...]) -> Pictures:
    album = read_album(Path(path))
    names = sorted(set(album.classes), key=lambda name: (len(name), name))
    if not 2 <= len(names) <= CLASSES:
        raise DatasetError(f"pictures {path}: expected 2 to {CLASSES} classes, found {len(names)}: {names[:12]}")
    labels = np.array([names.index(name) for name in album.classes], dtype=np.int64)
    chosen = _different(album, labels)
    if len(chosen) < MIN_PICTURES:
        raise DatasetError(
            f"pictures {path}: expected at least {MIN_PICTURES} distinct ones, found {len(chosen)}; add more"
        )
    images, labels = album.images[list(chosen.values())], labels[list(chosen.values())]
    used = min(len(chosen), _ALL)
    sizes = {part: used * POOL_SIZES[part] // _ALL for part in (DataSplit.TRAIN, DataSplit.VALIDATION)}
    sizes[DataSplit.TEST] = used - sum(sizes.values())
    content = hashlib.sha256()
    for name, label in zip(list(chosen)[:used], labels.tolist(), strict=False):
        content.update(name + bytes([label]))
    pools = cut_pools(images, labels, np.arange(used), sizes)
    if any(len(np.unique(pool.labels)) < 2 for pool in pools.values()):
        raise DatasetError(
            f"pictures {path}: expected several classes in every part of {used}, found nearly all of one"
        )
    return Pictures(pools, content.hexdigest())


def _different(album: Album, labels: np.ndarray[tuple[int], np.dtype[np.int64]]) -> dict[bytes, int]:
    """Return content hash -> index, ordered by hash; of equal pictures the one with the lowest label."""
    hashed = (hashlib.sha256(image.tobytes()).digest() for image in album.images.astype("<f4"))
    rows = sorted(zip(hashed, labels.tolist(), range(len(labels)), strict=True), reverse=True)
    indices = {name: index for name, _, index in rows}
    return dict(sorted(indices.items()))
