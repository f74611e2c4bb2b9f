"""A small training, one update of which meets a fault; the rest is as ever."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simic.contracts.errors import ResourceLimitError
from simic.contracts.results.receipts import SnapshotManifest
from simic.contracts.settings.network import NetworkConfig
from simic.contracts.settings.safety import AnomalyConfig, BreakerConfig, BreakersConfig, SafetyConfig
from simic.contracts.settings.training import TrainConfig
from simic.learning.learner import Learner
from simic.replay.dataset import GraphDataset
from support.faults.fork_context import fork_context
from support.faults.killed_training import LOADED, run_training

__all__ = ["BROKEN", "SMALL", "UPDATES", "before_update", "file_limit", "without_memory"]

QUICK = BreakersConfig(
    learner=BreakerConfig(failures=2, open_s=0.0),
    storage=BreakerConfig(failures=3, open_s=0.0),
    sampling=BreakerConfig(failures=5, open_s=0.0),
)
SMALL = TrainConfig(
    network=NetworkConfig(hidden=8, layers=1),
    batch_sequences=8,
    cloning_passes=0,
    value_passes=1,
    vtrace_passes=2,
    min_experiences=10,
    min_commit_rate=0.0,
    checkpoint_updates=3,
    safety=SafetyConfig(anomalies=AnomalyConfig(kl_updates=2), breakers=QUICK),
)
UPDATES, BROKEN = 9, 8
"""Updates of the whole training, and the one that is disturbed; checkpoints are after 3, 6 and 9."""
ROOM_BYTES = 48 << 20
"""Address space that is left to an update without memory."""
LARGE = 200_000
"""Sequences of a batch that does not fit into it."""


def before_update(patch: pytest.MonkeyPatch, number: int, happens: Callable[[], object], times: int = 1) -> None:
    """Let something happen ahead of update ``number``, the first ``times`` times that it is made."""
    real, left = Learner.update, times

    def update(self: Learner, *arguments: Any) -> Any:
        nonlocal left
        if self.history.done + 1 == number and not self.history.is_repeating and left:
            left -= 1
            happens()
        return real(self, *arguments)

    patch.setattr(Learner, "update", update)


def file_limit(size_bytes: int | None) -> None:
    """From now on no file grows beyond this size; None lifts that."""
    soft = resource.RLIM_INFINITY if size_bytes is None else size_bytes
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, resource.RLIM_INFINITY))


def without_memory(root: Path, snapshot: SnapshotManifest, times: int) -> int:
    """Train in a process of its own, where the first ``times`` batches from update ``BROKEN`` on find no memory.

    The address space is limited for real, and the batches ask for more. Returns how often training became conservative,
    or -1 after ResourceLimitError.
    """
    context = fork_context(LOADED)
    found = context.Queue()
    process = context.Process(target=_train_without_memory, args=(root, snapshot, times, found))
    process.start()
    entries: int = found.get(timeout=240)
    process.join()
    return entries


def _train_without_memory(root: Path, snapshot: SnapshotManifest, times: int, found: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        before_update(patch, BROKEN, lambda: _starve(patch, times))
        try:
            found.put(run_training(root, snapshot, SMALL).conservative_entries)
        except ResourceLimitError:
            found.put(-1)


def _starve(patch: pytest.MonkeyPatch, times: int) -> None:
    """Make the next batches large, with little room for them."""
    real, left = GraphDataset.batch, times

    def batch(self: GraphDataset, ids: Any) -> Any:
        nonlocal left
        if not left:
            return real(self, ids)
        left -= 1
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM_BYTES, resource.RLIM_INFINITY))
        try:
            return real(self, np.resize(ids, LARGE))
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    patch.setattr(GraphDataset, "batch", batch)
