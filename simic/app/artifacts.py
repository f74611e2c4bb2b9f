"""Artifacts that receipts name: located, verified against their digests, and moved away when damaged."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from simic.app.container import Container
from simic.app.names.policy_names import require_path
from simic.app.receipts import SEALED, ReceiptStore
from simic.contracts.errors import ConfigError, IntegrityError
from simic.contracts.results.gate import ValidationReport
from simic.contracts.results.receipts import IngestReceipt, Receipt, SnapshotManifest, TrainingReport
from simic.contracts.results.trials import SeedChoice
from simic.lake.lake import open_lake
from simic.runtime.files import move_to_damaged
from simic.runtime.home import Home
from simic.snapshots.index import find_folder
from simic.snapshots.manifest import Verify, read_manifest

__all__ = ["artifacts_are_intact", "move_damaged_artifacts", "resolve_snapshot", "resolve_training"]

_DIGEST = re.compile(r"[0-9a-f]{4,64}")


def resolve_snapshot(container: Container, name: str | Path | None) -> SnapshotManifest:
    """Return a verified snapshot by directory, receipt file or first characters of its digest; else the latest.

    Raises:
        ConfigError: if no snapshot or several have that name.
        IntegrityError: if a byte of it changed.
    """
    if name is None:
        return container.receipts.latest(SnapshotManifest, "run `simic curate` first")
    path = Path(name)
    if _DIGEST.fullmatch(str(name)) and not path.exists():
        path = find_folder(container.home, str(name))
    if path.is_dir():
        return read_manifest(path, Verify.SIZES)  # training reads every byte itself
    if not path.exists():
        raise ConfigError(
            f"{str(name)!r} is not a snapshot: expected a directory, the first 4 or more characters of a digest, or a "
            "curate receipt; `simic snapshots list` lists them"
        )
    return container.receipts.read(SnapshotManifest, path)


def resolve_training(container: Container, name: str | Path | None) -> TrainingReport:
    """Return a training report by policy directory, receipt file or a name of ``Policies.at``; else the latest.

    If the latest is one of several training seeds that a run has chosen from, it is the chosen one.

    Raises:
        ConfigError: if no policy or several have that name, or if the policy was not trained in this home.
        IntegrityError: if the policy or the receipt is not as it was sealed.
    """
    receipts, policies = container.receipts, container.policies
    if name is None:
        return _chosen(receipts, receipts.latest(TrainingReport, "run `simic train` first"))
    path = Path(name)
    if path.is_file():
        return receipts.read(TrainingReport, path)
    policy = path if path.is_dir() else policies.at(str(name))
    if policy is None:
        return receipts.read(TrainingReport, require_path(str(name)))
    digest = policies.check(policy)
    return receipts.find(TrainingReport, lambda report: report.digest == digest, f"{name} was not trained in this home")


def _chosen(receipts: ReceiptStore, latest: TrainingReport) -> TrainingReport:
    choice = receipts.find_any(SeedChoice, lambda seed_choice: latest.digest in seed_choice.policies)
    if choice is None or choice.policy_digest == latest.digest:
        return latest
    hint = f"the policy that training seeds were chosen for, {choice.policy_digest[:12]}, has no receipt"
    return receipts.find(TrainingReport, lambda report: report.digest == choice.policy_digest, hint)


def artifacts_are_intact(container: Container, receipt: Receipt) -> bool:
    """Return whether the artifacts of a receipt are as they were sealed.

    Digests of snapshots and policies are computed again; figures and parts only have to exist. A receipt that decides
    about a promotion must also be in the store, unchanged and validly sealed, because a cached copy does not prove who
    wrote it.
    """
    if type(receipt) in SEALED and not container.receipts.contains(receipt):
        return False
    try:
        match receipt:
            case SnapshotManifest() | TrainingReport():
                return _is_as_sealed(container, receipt)
            case ValidationReport():
                return all(Path(path).is_file() for path in receipt.figures.values())
            case IngestReceipt():
                return _has_landed(receipt.parts, container.home)
            case _:
                return True
    except IntegrityError:
        return False


def move_damaged_artifacts(container: Container, receipt: Receipt) -> None:
    """Move a damaged snapshot or policy to the folder of damaged files; an intact one stays.

    The directory is derived from the digest alone, because the path in a stored receipt may have been edited.
    """
    match receipt:
        case SnapshotManifest():
            path = container.home.snapshot_folder(receipt.digest)
        case TrainingReport():
            path = container.home.policies / receipt.digest
        case _:
            return
    if path.is_dir() and not _is_as_sealed(container, receipt.model_copy(update={"path": str(path)})):
        move_to_damaged(path)


def _has_landed(parts: Sequence[str], home: Home) -> bool:
    """Return whether all parts landed. Merged and dropped parts count; parts removed as damaged do not."""
    lake = open_lake(home)
    live = {part.part for part in lake.parts}
    return all(
        lake.store.size_bytes(part) is not None if part in live else part in lake.state.retired for part in parts
    )


def _is_as_sealed(container: Container, receipt: SnapshotManifest | TrainingReport) -> bool:
    try:
        if isinstance(receipt, TrainingReport):
            return container.policies.check(Path(receipt.path), receipt.digest) == receipt.digest
        return read_manifest(Path(receipt.path)).digest == receipt.digest
    except IntegrityError:
        return False
