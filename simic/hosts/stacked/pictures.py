"""A user's own pictures in the digits' place; see ``picture_files`` for what can be read.

Pictures that are alike once reduced to 8x8 count once, so none can be taught and judged at a time. Ordered by the hash
of their content, at most as many as there are digits are cut in the digits' proportions. So neither the order nor the
names of files matter, except that classes are numbered by name, short names first.
Shapes: n pictures.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from simic.contracts.errors import DatasetError
from simic.hosts.protocols import Part
from simic.hosts.stacked.anatomy import CLASSES
from simic.hosts.stacked.data import POOL_SIZES, Pool, PoolOf, cut_pools
from simic.hosts.stacked.picture_files import Album, read_album

__all__ = ["MIN_PICTURES", "Pictures", "load_pictures", "pictures_digest", "pool_source"]

MIN_PICTURES = 400
"""Different ones; fewer make pools that hosts cannot be compared on."""
_ALL = sum(POOL_SIZES.values())


class Pictures(NamedTuple):
    """What hosts can be shown."""

    pools: dict[Part, Pool]
    digest: str
    """SHA-256 over the pictures and labels that are used, whatever files they came from."""


def load_pictures(path: str) -> Pictures:
    """The pictures at a path, read once per process unless they change; a DatasetError if hosts cannot use them."""
    root = Path(path)
    try:
        watched = sorted(root.glob("*/*")) if root.is_dir() else [root]
        stats = [one.stat() for one in watched if one.exists()]
    except (OSError, ValueError) as error:
        raise DatasetError(f"pictures: {path[:80]!r} cannot be looked at: {error}") from error
    return _load(path, tuple((one.st_mtime_ns, one.st_size, one.st_ino) for one in stats))


def pool_source(path: str | None) -> PoolOf | None:
    """Where hosts take images from; None means digits."""
    return None if path is None else load_pictures(path).pools.__getitem__


def pictures_digest(path: str | None) -> str | None:
    """What tells experience of these pictures from other experience; None means digits."""
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
            f"pictures {path}: expected at least {MIN_PICTURES} different ones, found {len(chosen)}; add more"
        )
    images, labels = album.images[list(chosen.values())], labels[list(chosen.values())]
    used = min(len(chosen), _ALL)
    sizes = {part: used * POOL_SIZES[part] // _ALL for part in (Part.TRAIN, Part.VALIDATION)}
    sizes[Part.TEST] = used - sum(sizes.values())
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
    """Content hash -> index, in the order of the hashes; of several alike, the one with the lowest label."""
    hashed = (hashlib.sha256(one.tobytes()).digest() for one in album.images.astype("<f4"))
    rows = sorted(zip(hashed, labels.tolist(), range(len(labels)), strict=True), reverse=True)
    found = {name: index for name, _, index in rows}
    return dict(sorted(found.items()))
