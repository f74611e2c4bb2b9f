"""A full disk, wherever it is met: nothing is wrong with the work, and there will be room again."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from simic.contracts.errors import TransientError

__all__ = ["full_disk_is_transient"]

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The disk, the quota, or the largest file that this process may write."""


@contextmanager
def full_disk_is_transient() -> Iterator[None]:
    """Raises TransientError in place of an OSError that says that something is full; others pass."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        place = "" if error.filename is None else f": {error.filename}"
        raise TransientError(f"{error.strerror}{place}; make space and give the same command again") from error
