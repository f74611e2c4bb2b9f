"""Processes that are forked from a server that has loaded given modules, whatever the test process started before."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing import forkserver, get_context
from multiprocessing.context import ForkServerContext

__all__ = ["fork_context"]


def fork_context(modules: Sequence[str]) -> ForkServerContext:
    """Return a context whose server has loaded ``modules``, in place of one that a pool started with others."""
    server = forkserver._forkserver  # type: ignore[attr-defined]
    if server._preload_modules != list(modules):
        server._stop()
    context = get_context("forkserver")
    context.set_forkserver_preload(list(modules))
    return context
