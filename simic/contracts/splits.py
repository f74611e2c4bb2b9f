"""Which hosts may teach, tune and judge: by hash of set and key, never by position."""

from __future__ import annotations

import hashlib
from enum import Enum

__all__ = ["TEST_SHARE", "TRAIN_SHARE", "Split", "split_of"]

TRAIN_SHARE = 80
"""Per cent of hosts; the rest is shared by validation and test."""
TEST_SHARE = 10


class Split(str, Enum):
    """A host belongs to exactly one."""

    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"


def split_of(set_name: str, key: int) -> Split:
    """Bucket = first 32 bits of SHA-256(``set:key``) mod 100; ``curation`` computes the same in SQL."""
    bucket = int(hashlib.sha256(f"{set_name}:{key}".encode()).hexdigest()[:8], 16) % 100
    if bucket < TRAIN_SHARE:
        return Split.TRAIN
    return Split.TEST if bucket >= 100 - TEST_SHARE else Split.VALIDATION
