"""The code version: the release and a digest of every source file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import simic

__all__ = ["code_version", "tree_digest"]

SUFFIXES = frozenset({".py", ".sql", ".toml", ".json"})
PACKAGES = ("simic", "flows", "tasks")


@cache
def code_version() -> str:
    """Return ``<release>+<12 hex>``; the digest covers the sources of simic, flows and tasks on disk."""
    root = Path(__file__).resolve().parents[2]
    return f"{simic.__version__}+{tree_digest(root, PACKAGES)[:12]}"


def tree_digest(root: Path, parts: Iterable[str]) -> str:
    """Return the SHA-256 over path, size and bytes of every source file in the folders, in the order of paths."""
    files = {
        path.relative_to(root).as_posix(): path
        for part in parts
        for path in (root / part, *(root / part).rglob("*"))
        if path.suffix in SUFFIXES and path.is_file()
    }
    digest = hashlib.sha256()
    for name in sorted(files):
        data = files[name].read_bytes()
        digest.update(f"{name}\n{len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()
