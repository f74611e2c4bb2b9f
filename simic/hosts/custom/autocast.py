"""Computing in the types of the tensors, whatever ``torch.autocast`` the caller is in."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch

__all__ = ["without_autocast"]


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which operations on ``device`` compute in the types of their tensors."""
    kind = device.type
    if not _has_autocast(kind) or not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


@cache
def _has_autocast(kind: str) -> bool:
    try:
        return torch.amp.is_autocast_available(kind)
    except RuntimeError:  # for kinds of which autocast knows nothing, such as meta
        return False
