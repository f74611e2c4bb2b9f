"""Random streams: one root seed, child streams by name, no global random state."""

from __future__ import annotations

import hashlib
import json
import operator

import numpy as np

__all__ = ["derive", "generator"]


def derive(seed: int, *names: str | int) -> int:
    """Return a child seed in [0, 2**63): the first 63 bits of SHA-256 over the JSON list ``[seed, *names]``.

    JSON distinguishes ``"1"`` from ``1`` and separates names unambiguously, so no two streams coincide by accident, and
    adding a stream does not change others.
    """
    path = [operator.index(seed), *(name if isinstance(name, str) else operator.index(name) for name in names)]
    data = json.dumps(path, ensure_ascii=False, separators=(",", ":")).encode()
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big") >> 1


def generator(seed: int, *names: str | int) -> np.random.Generator:
    """Return a new generator for the named stream.

    The bit generator is spelt out: NumPy may change what ``default_rng`` returns.
    """
    return np.random.Generator(np.random.PCG64(derive(seed, *names)))
