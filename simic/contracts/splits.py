"""Data splits: a hash of set and key assigns each host to training, validation or test."""

from __future__ import annotations

import hashlib
from enum import Enum

__all__ = ["TEST_SHARE", "TRAIN_SHARE", "Split", "split_of"]

TRAIN_SHARE = 80
"""Per cent of training hosts; validation and test share the rest equally."""
TEST_SHARE = 10


class Split(str, Enum):
    """Data split of a host; each host belongs to exactly one."""

    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"


def split_of(set_name: str, key: int) -> Split:
    """Return the split: bucket = first 32 bits of SHA-256(``set:key``) mod 100; curation computes the same in SQL."""
    bucket = int(hashlib.sha256(f"{set_name}:{key}".encode()).hexdigest()[:8], 16) % 100
    if bucket < TRAIN_SHARE:
        return Split.TRAIN
    return Split.TEST if bucket >= 100 - TEST_SHARE else Split.VALIDATION
