"""What a training leaves behind: a sealed policy named by its digest, and its curves beside it."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from simic.contracts.errors import IntegrityError
from simic.contracts.receipts import Provenance, SnapshotManifest
from simic.controllers.store import describe, save_policy
from simic.learning.checkpoint import write_state
from simic.learning.session import Session
from simic.runtime.aside import set_aside
from simic.runtime.telemetry import JsonLinesSink
from simic.trust.keys import Signer
from simic.trust.seal import seal

__all__ = ["SealedPolicy", "Workshop"]

_LOG = logging.getLogger(__name__)
CURVES_FOLDER = "curves"
"""Beside the policies, for curves take no part in a policy's digest."""


class SealedPolicy(NamedTuple):
    """Where it is and what it is."""

    path: Path
    digest: str
    curves: Path


class Workshop:
    """A folder in which one training works; a killed one leaves it behind, and the same training clears it."""

    def __init__(
        self, out_root: Path, snapshot_digest: str, start_digest: str | None, seed: int, *, is_continuation: bool
    ) -> None:
        self._root = out_root
        self._earlier = start_digest if is_continuation else None
        name = f".train-{snapshot_digest[:12]}-{(start_digest or 'fresh')[:12]}-{seed}"
        self._folder = out_root / name
        self._curves = self._folder / "curves.jsonl"

    def open_curves(self) -> JsonLinesSink:
        """A new file of curves; a round's begins with those of the rounds before, where they are still there."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        if self._earlier is not None and (earlier := self._curves_of(self._earlier)).is_file():
            shutil.copyfile(earlier, self._curves)
        return JsonLinesSink(self._curves)

    def seal(
        self,
        session: Session,
        signer: Signer,
        verify: Callable[[Path], str],
        snapshot: SnapshotManifest,
        set_name: str,
        provenance: Provenance,
    ) -> SealedPolicy:
        """The policy at ``<root>/<digest>``; one that is there already and whole stays, for it has the same bytes."""
        network, folder = session.policy(), self._folder / "policy"
        card = describe(
            network.eval(),
            session.config.network,
            set_name=set_name,
            snapshot_digest=snapshot.digest,
            code_version=provenance.code_version,
            config_digest=provenance.config_digest,
            germinated=session.germinated,
        )
        save_policy(folder, network, card)
        write_state(folder, session.state(snapshot.digest), session.learner.network, session.learner.optimizer)
        digest = seal(folder, signer).digest
        target, curves = self._root / digest, self._curves_of(digest)
        curves.parent.mkdir(parents=True, exist_ok=True)
        self._curves.replace(curves)
        if target.exists() and not _is_whole(target, digest, verify):
            _LOG.warning("policy %s was damaged and is set aside as %s", target, set_aside(target))
        if not target.exists():
            folder.rename(target)
        shutil.rmtree(self._folder, ignore_errors=True)
        return SealedPolicy(target, digest, curves)

    def _curves_of(self, digest: str) -> Path:
        return self._root.with_name(CURVES_FOLDER) / f"{digest}.jsonl"


def _is_whole(path: Path, digest: str, verify: Callable[[Path], str]) -> bool:
    try:
        return verify(path) == digest
    except IntegrityError:
        return False
