"""Checkpoints of a training in progress: sealed directories that appear complete or not at all. No pickle.

The curves hold the metrics of every update, so a checkpoint names only how far it covers them, with a digest.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from simic.contracts.base import Contract, Count, Digest, Finite, NonNegative
from simic.contracts.errors import ContractError, IntegrityError
from simic.learning.history import History, Resumed
from simic.runtime.files import atomic_dir, fsync_file
from simic.trust.canonical import canonical_bytes
from simic.trust.keys import Signer
from simic.trust.seal import seal

__all__ = ["Checkpoint", "Checkpoints"]

_LOG = logging.getLogger(__name__)

STATE_NAME, TENSORS_NAME = "state.json", "tensors.safetensors"
KEPT = 2
"""Number of checkpoints that stay: the newest, and one in case it is damaged."""


class CheckpointState(Contract):
    """Counters, random states and curve positions with which a killed training resumes, beside its tensors."""

    schema_version: Literal[1] = 1
    training: Digest
    """Digest of all that decides the bits of the training."""
    recoveries: Count
    """Divergences after which the training went on with halved learning rates."""
    elapsed_s: NonNegative
    """Seconds spent by all processes of the training."""
    updates: dict[str, Count]
    """Update counter of each learner."""
    values: dict[str, dict[str, Finite]]
    """Numbers that phases computed from weights."""
    samplers: dict[str, str]
    """States of samplers whose draws depend on weights, as JSON."""
    curves_start: Count
    """Bytes of the curves before the first update of this training."""
    curves_bytes: Count
    """Bytes of the curves up to this checkpoint."""
    curves_sha256: Digest
    """Of those bytes."""


class Checkpoint(NamedTuple):
    """A checkpoint whose seal, identity and curves are right."""

    path: Path
    state: CheckpointState
    content: Resumed


class StoredTensors(Mapping[str, Tensor]):
    """The tensors of a file, on the CPU and read when they are asked for: loading takes the memory of one at a time."""

    def __init__(self, path: Path) -> None:
        """Open the file, which stays open while this exists; raise SafetensorError if it is malformed."""
        self._file = safe_open(path, framework="pt", device="cpu")
        self._names = tuple(self._file.keys())  # type: ignore[no-untyped-call]

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        tensor: Tensor = self._file.get_tensor(name)  # type: ignore[no-untyped-call]
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Checkpoints:
    """The checkpoints of one training, in a folder of their own."""

    def __init__(
        self, folder: Path, curves: Path, training: str, signer: Signer, verify: Callable[[Path], str]
    ) -> None:
        """Prepare; ``training`` is a digest that only a training of the same bits has."""
        self._folder, self._curves, self._training = folder, curves, training
        self._signer, self._verify = signer, verify
        self._start, self._covered, self._sha256 = 0, 0, hashlib.sha256()

    def begin(self, checkpoint: Checkpoint | None) -> None:
        """Begin to follow the curves: as they are now, or cut back to a checkpoint."""
        self._covered, self._sha256 = 0, hashlib.sha256()
        if checkpoint is None:
            self._start = self._curves.stat().st_size
            return
        os.truncate(self._curves, checkpoint.state.curves_bytes)
        self._start = checkpoint.state.curves_start

    def write(self, history: History, elapsed_s: float) -> None:
        """Write a checkpoint after an update whose curves are written, and remove older ones beyond ``KEPT``.

        Raises:
            DivergenceError: if a weight or a moment is not finite; nothing is written then.
        """
        content = history.state()
        fsync_file(self._curves)
        with self._curves.open("rb") as file:
            file.seek(self._covered)
            added = file.read()
        self._sha256.update(added)
        self._covered += len(added)
        state = CheckpointState(
            training=self._training,
            recoveries=history.guard.recoveries,
            elapsed_s=elapsed_s,
            updates=dict(content.updates),
            values={name: dict(values) for name, values in content.values.items()},
            samplers=dict(content.samplers),
            curves_start=self._start,
            curves_bytes=self._covered,
            curves_sha256=self._sha256.hexdigest(),
        )
        self._put(history.done, state, content)

    def newest(self) -> Checkpoint | None:
        """Return the newest checkpoint that can be resumed from, and remove those that cannot."""
        for path in self._paths():
            try:
                return self._read(path)
            except (ContractError, IntegrityError) as error:
                _LOG.warning("checkpoint %s is not used and is removed: %s", path.name, error)
                shutil.rmtree(path)
        return None

    def store_recovery(self) -> Checkpoint | None:
        """Store the newest checkpoint again with one recovery more, and return that; None if there is none."""
        before = self.newest()
        if before is None:
            return None
        state = before.state.model_copy(update={"recoveries": before.state.recoveries + 1})
        path = self._put(len(before.content.metrics), state, before.content)
        return before._replace(path=path, state=state)

    def _put(self, done: int, state: CheckpointState, content: Resumed) -> Path:
        path = self._folder / f"{done:010d}-{state.recoveries}"
        with atomic_dir(path) as folder:
            tensors = {name: tensor.cpu().contiguous() for name, tensor in content.tensors.items()}
            (folder / TENSORS_NAME).write_bytes(save(tensors))
            (folder / STATE_NAME).write_bytes(canonical_bytes(state))
            seal(folder, self._signer)
        for old in self._paths()[KEPT:]:
            shutil.rmtree(old)
        return path

    def _paths(self) -> list[Path]:
        """Return the checkpoints, newest first."""
        if not self._folder.is_dir():
            return []
        return sorted((path for path in self._folder.iterdir() if not path.name.startswith(".")), reverse=True)

    def _read(self, path: Path) -> Checkpoint:
        self._verify(path)
        try:
            state = CheckpointState.model_validate_json((path / STATE_NAME).read_bytes())
            tensors = StoredTensors(path / TENSORS_NAME)
        except (OSError, ValidationError, SafetensorError) as error:
            raise ContractError(f"it is malformed: {error}") from error
        if state.training != self._training:
            raise ContractError("it belongs to a training of other settings, data or code")
        return Checkpoint(
            path, state, Resumed(self._metrics(state), tensors, state.updates, state.values, state.samplers)
        )

    def _metrics(self, state: CheckpointState) -> Sequence[dict[str, float]]:
        try:
            with self._curves.open("rb") as file:
                covered = file.read(state.curves_bytes)
        except OSError as error:
            raise ContractError(f"the curves cannot be read: {error.strerror}") from error
        if hashlib.sha256(covered).hexdigest() != state.curves_sha256:
            raise ContractError("the curves that it covers have changed")
        records = [json.loads(line)["metrics"] for line in covered[state.curves_start :].splitlines()]
        return [{name: math.nan if x is None else x for name, x in record.items()} for record in records]
