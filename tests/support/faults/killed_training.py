"""A small training in a process of its own, which kills itself with signal 9 at a chosen point."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simic.contracts.results.receipts import Provenance, SnapshotManifest, TrainingReport
from simic.contracts.settings.training import TrainConfig
from simic.hosts.plugins import blueprint_names
from simic.learning import checkpoints, output
from simic.learning.learner import Learner
from simic.learning.train import train
from simic.learning.training_run import WarmStart
from simic.replay.dataset import GraphDataset
from simic.runtime.telemetry import NullObserver, Update
from simic.trust.keys import Keyring, load_signer
from simic.trust.seal import verify as verify_seal
from support.faults.fork_context import fork_context

__all__ = ["ENDINGS", "PLACES", "Kill", "batches_of", "in_process", "run_training"]

NOW = datetime(2026, 2, 1, tzinfo=UTC)
PLACES = ("update", "logged", "writing", "sealed", "published")
"""Within an update, after its record, and three moments of the first checkpoint from there on."""
ENDINGS = ("policy sealed", "policy placed", "curves placed", "report not saved")
"""Moments between the last update of a training and its report."""

LOADED = [
    "simic.hosts.plugins",
    "simic.learning.train",
    "simic.learning.objectives.ppo",
    "simic.trust.keys",
    "pandas",  # which DuckDB or pyarrow loads with the first column,
    "torch._dynamo",  # and torch with the first optimiser: seconds in which no kill would meet the training
]
"""Modules that the server of the processes loads once."""


class Kill(NamedTuple):
    """Where a process ends."""

    step: int
    """Update, counted from 1."""
    place: str


class _Sink(NullObserver):
    """Writes down what every update learned from, and ends the process where it is told to."""

    def __init__(self, out: Path, kill: Kill | None) -> None:
        self._out, self._kill = out, kill
        self.step, self.ids = 0, ""

    def update(self, update: Update) -> None:
        with self._out.open("a") as file:
            file.write(json.dumps([update.step, self.ids]) + "\n")
        self.step = update.step
        self.die("logged")

    def die(self, place: str) -> None:
        step = self.step + (place == "update")
        if self._kill is not None and place == self._kill.place and step >= self._kill.step:
            os.kill(os.getpid(), signal.SIGKILL)


def run_training(
    root: Path,
    snapshot: SnapshotManifest,
    config: TrainConfig,
    start: WarmStart | None = None,
    kill: Kill | None = None,
    *,
    resume: bool = True,
) -> TrainingReport:
    """Train in ``root``, resuming; batches are written to ``root/batches.jsonl``."""
    sink = _Sink(root / "batches.jsonl", kill)
    changes: list[tuple[Any, str, Callable[[Any], Any]]] = [
        (GraphDataset, "batch", lambda real: _noting(sink, real)),
        (GraphDataset, "states", lambda real: _noting(sink, real)),
        (Learner, "_clip", lambda real: _before(sink, "update", real)),
        (checkpoints, "save", lambda real: _before(sink, "writing", real)),
        (checkpoints, "seal", lambda real: _after(sink, "sealed", real)),
        (checkpoints.Checkpoints, "_put", lambda real: _after(sink, "published", real)),
        (output, "seal", lambda real: _after(sink, "policy sealed", real)),
        (output, "publish_dir", lambda real: _after(sink, "policy placed", real)),
        (output, "atomic_write", lambda real: _after(sink, "curves placed", real)),
    ]
    real = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    for owner, name, change in changes:
        setattr(owner, name, change(getattr(owner, name)))
    try:
        return train(
            snapshot,
            config,
            blueprints=blueprint_names(),
            start=start,
            out_root=root / "policies",
            signer=load_signer(root / "keys", {}),
            verify=lambda path: verify_seal(path, Keyring(root / "keys")).digest,
            observer=sink,
            seed=0,
            provenance=Provenance("test", "0" * 64, 0),
            clock=lambda: NOW,
            on_progress=None,
            resume=resume,
            save=_before(sink, "report not saved", lambda report: report),
        )
    finally:
        for owner, name, function in real:
            setattr(owner, name, function)


def in_process(*arguments: Any) -> int | None:
    """``run_training`` in a process of its own; returns its exit code, which is -9 after a kill."""
    context = fork_context(LOADED)  # not this module: the server does not know the path of the tests
    process = context.Process(target=run_training, args=arguments)
    process.start()
    process.join()
    return process.exitcode


def batches_of(root: Path) -> list[tuple[int, str]]:
    """What the updates learned from, in the order in which they were made; repeated updates make none."""
    return [(step, ids) for step, ids in map(json.loads, (root / "batches.jsonl").read_text().splitlines())]


def _noting(sink: _Sink, real: Callable[..., Any]) -> Callable[..., Any]:
    def noting(self: GraphDataset, ids: np.ndarray) -> Any:
        sink.ids = hashlib.sha256(np.ascontiguousarray(ids).tobytes()).hexdigest()[:16]
        return real(self, ids)

    return noting


def _before(sink: _Sink, place: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def dying(*arguments: Any) -> Any:
        sink.die(place)
        return real(*arguments)

    return dying


def _after(sink: _Sink, place: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def dying(*arguments: Any) -> Any:
        result = real(*arguments)
        sink.die(place)
        return result

    return dying
