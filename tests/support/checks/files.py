"""What lies below a directory, to be compared before and after."""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["bytes_of"]


def bytes_of(root: Path) -> dict[str, str]:
    """SHA-256 and time of last change of every file, by path; locks are left out, for they hold nothing."""
    files = sorted(path for path in root.rglob("*") if path.is_file() and ".locks" not in path.parts)
    return {
        str(path.relative_to(root)): f"{hashlib.sha256(path.read_bytes()).hexdigest()} {path.stat().st_mtime_ns}"
        for path in files
    }
