"""Computing in the types of the tensors, whatever ``torch.autocast`` the caller is in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import nn

__all__ = ["with_plain_forward", "without_autocast"]


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which operations on ``device`` compute in the types of their tensors."""
    kind = device.type
    if not _has_autocast(kind) or not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


@contextmanager
def with_plain_forward(module: nn.Module) -> Iterator[None]:
    """Let a module and its parts run the ``forward`` that they had before Accelerate's ``prepare``.

    The one that ``prepare`` gives them enters an autocast of its own, which no context around the pass turns off.
    """
    prepared = [vars(part) for part in module.modules() if _is_prepared(vars(part))]
    before = [(own, own["forward"]) for own in prepared]
    try:
        for own in prepared:
            own["forward"] = own["_original_forward"]
        yield
    finally:
        for own, forward in before:
            own["forward"] = forward


def _is_prepared(own: dict[str, Any]) -> bool:
    """Return whether a ``forward`` is that of Accelerate, and not an owner's who keeps another by the same name."""
    wrapped = getattr(own.get("forward"), "__wrapped__", None)
    return "_original_forward" in own and type(wrapped).__module__.partition(".")[0] == "accelerate"


@cache
def _has_autocast(kind: str) -> bool:
    try:
        return torch.amp.is_autocast_available(kind)
    except RuntimeError:  # for kinds of which autocast knows nothing, such as meta
        return False
