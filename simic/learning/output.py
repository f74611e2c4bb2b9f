"""The folders of a training: one to work in, and one of the sealed policy."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from simic.contracts.errors import IntegrityError
from simic.contracts.results.receipts import Provenance, SnapshotManifest
from simic.controllers.policy_files import describe, save_policy
from simic.learning.checkpoints import Checkpoint, Checkpoints
from simic.learning.continual.memory import write_memory
from simic.learning.learner_state import write_state
from simic.learning.training_run import TrainingRun
from simic.runtime.files import atomic_write, move_to_damaged, publish_dir
from simic.runtime.telemetry import JsonLinesSink
from simic.trust.keys import Signer
from simic.trust.seal import seal

__all__ = ["SealedPolicy", "TrainingOutput", "publish_sealed"]

_LOG = logging.getLogger(__name__)
CURVES_FOLDER = "curves"
"""Folder beside the policies: curves are not part of a policy's digest."""


class SealedPolicy(NamedTuple):
    """Path and digest of a sealed policy, and the path of its curves."""

    path: Path
    digest: str
    curves: Path


class TrainingOutput:
    """The working folder of one training run; a killed run leaves it, and the same run resumes from it or clears it."""

    def __init__(
        self, out_root: Path, snapshot_digest: str, start_digest: str | None, seed: int, *, is_continuation: bool
    ) -> None:
        self._root = out_root
        self._previous = start_digest if is_continuation else None
        name = f".train-{snapshot_digest[:12]}-{(start_digest or 'fresh')[:12]}-{seed}"
        self._folder = out_root / name
        self._curves = self._folder / "curves.jsonl"

    def checkpoints(self, training: str, signer: Signer, verify: Callable[[Path], str]) -> Checkpoints:
        """Return the checkpoints in this folder of a training that ``training`` identifies."""
        return Checkpoints(self._folder / "checkpoints", self._curves, training, signer, verify)

    def open_curves(self, checkpoints: Checkpoints, checkpoint: Checkpoint | None) -> JsonLinesSink:
        """Open the curves cut back to a checkpoint, or in a cleared folder.

        New curves of a later round begin with those of earlier rounds, if they exist.
        """
        if checkpoint is None:
            self._clear()
        checkpoints.begin(checkpoint)
        return JsonLinesSink(self._curves)

    def _clear(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        if self._previous is not None and (earlier := self._curves_of(self._previous)).is_file():
            shutil.copyfile(earlier, self._curves)
        else:
            self._curves.touch()

    def seal(
        self,
        training: TrainingRun,
        signer: Signer,
        verify: Callable[[Path], str],
        snapshot: SnapshotManifest,
        sets: Sequence[str],
        provenance: Provenance,
    ) -> SealedPolicy:
        """Seal the policy at ``<root>/<digest>``; an intact one that exists already stays, as it has the same bytes.

        The working folder stays until ``remove``: a training that is killed before resumes from it.
        """
        network, folder = training.policy(), self._folder / "policy"
        card = describe(
            network.eval(),
            training.config.network,
            set_name="+".join(sets),
            snapshot_digest=snapshot.digest,
            code_version=provenance.code_version,
            config_digest=provenance.config_digest,
            germinated=training.germinated,
            feature_ranges=training.feature_ranges,
        )
        shutil.rmtree(folder, ignore_errors=True)  # what a kill left
        save_policy(folder, network, card)
        write_state(folder, training.state(snapshot.digest), training.learner.network, training.learner.optimizer)
        if training.memory is not None:
            write_memory(folder, training.memory)
        digest = seal(folder, signer).digest
        target, curves = publish_sealed(folder, self._root, digest, verify), self._curves_of(digest)
        curves.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(curves, self._curves.read_bytes())  # a copy: the checkpoints need their own
        return SealedPolicy(target, digest, curves)

    def remove(self) -> None:
        """Remove the working folder with its checkpoints, once the report is saved."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _curves_of(self, digest: str) -> Path:
        return self._root.with_name(CURVES_FOLDER) / f"{digest}.jsonl"


def publish_sealed(folder: Path, root: Path, digest: str, verify: Callable[[Path], str]) -> Path:
    """Move a sealed folder to ``root/digest`` and return that; an intact one there stays, as it has the same bytes."""
    target = root / digest
    if target.exists() and not _is_whole(target, digest, verify):
        _LOG.warning("%s was damaged and is set aside as %s", target, move_to_damaged(target))
    if not target.exists():
        publish_dir(folder, target)
    return target


def _is_whole(path: Path, digest: str, verify: Callable[[Path], str]) -> bool:
    try:
        return verify(path) == digest
    except IntegrityError:
        return False
