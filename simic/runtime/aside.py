"""Damaged directories make room for sound ones; they are kept, for nothing that somebody made is deleted unseen."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

__all__ = ["set_aside"]

DAMAGED = "damaged"


def set_aside(path: Path) -> Path:
    """Move a directory to ``damaged`` beside the folder in which it lies; returns where it is now."""
    folder = path.parent.with_name(DAMAGED)
    folder.mkdir(parents=True, exist_ok=True)
    return path.rename(folder / f"{path.name}-{uuid4().hex[:8]}")
