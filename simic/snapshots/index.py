"""The snapshots of a home: list them, find one by a prefix of its digest, and name the policies trained on each."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from simic.contracts.errors import ConfigError, IntegrityError
from simic.contracts.names import MODELS
from simic.contracts.results.receipts import PolicyVersion, SnapshotManifest
from simic.contracts.results.snapshots import PolicyStatus, SnapshotList, SnapshotSummary, SnapshotUse
from simic.ledgers.pins import pinned
from simic.ledgers.policies import ancestors, candidate_versions, champion_versions, gate_decisions, trainings
from simic.runtime.home import FOLDER_CHARACTERS, Home
from simic.snapshots.manifest import MANIFEST_NAME, Verify, identity_problems, read_manifest
from simic.snapshots.parts import is_linked_part

__all__ = ["find_folder", "folders", "list_snapshots", "policy_statuses", "uses", "without_training_receipt"]

_DIGEST = re.compile(r"[0-9a-f]{4,64}")


def folders(home: Home) -> list[Path]:
    """Return the folders of all snapshots, intact or damaged, sorted by name; not those that are being made."""
    return sorted(path for path in home.snapshots.glob("*") if path != home.unfinished_snapshots and path.is_dir())


def find_folder(home: Home, digest: str) -> Path:
    """Return the folder of the one snapshot, intact or damaged, whose digest begins with ``digest``.

    Raises:
        ConfigError: if no snapshot or several match.
    """
    if not _DIGEST.fullmatch(digest):
        expected = "4 to 64 of 0-9 and a-f; `simic snapshots list` lists them"
        raise ConfigError(f"{digest!r} is not a digest or the beginning of one: {expected}")
    matching = [path for path in folders(home) if _matches(path, digest)]
    if len(matching) != 1:
        raise ConfigError(_not_one(digest, matching, folders(home)))
    return matching[0]


def _not_one(digest: str, matching: list[Path], known: list[Path]) -> str:
    """Return the message for a beginning of a digest that no snapshot has, or several."""
    names = ", ".join(path.name for path in (matching or known)[:8])
    if matching:
        return f"several snapshots have a digest that begins with {digest!r}: {names}; give more characters"
    listed = f"`simic snapshots list` lists them: {names}"
    hint = listed if known else "this home has no snapshots, `simic curate` makes one"
    return f"no snapshot has a digest that begins with {digest!r}; {hint}"


def _matches(path: Path, digest: str) -> bool:
    """Compare with the folder's name, and with the manifest if ``digest`` is longer than the name."""
    if not path.name.startswith(digest[:FOLDER_CHARACTERS]):
        return False
    try:
        return len(digest) <= FOLDER_CHARACTERS or read_manifest(path, Verify.NONE).digest.startswith(digest)
    except IntegrityError:
        return True


def list_snapshots(home: Home) -> SnapshotList:
    """List all snapshots, oldest first; ``unreadable`` names those whose manifest is damaged or has a wrong digest.

    Pins and uses are looked up by the digest in the manifest, so that digest is verified first.
    """
    manifests: list[SnapshotManifest] = []
    unreadable: dict[str, str] = {}
    for path in folders(home):
        try:
            manifest = read_manifest(path, Verify.NONE)
        except IntegrityError as error:
            unreadable[path.name] = str(error)
            continue
        if damage := next(identity_problems(path, manifest), None):
            unreadable[path.name] = f"{path}: {damage}"
        else:
            manifests.append(manifest)
    used_by, pins = uses(home), pinned(home)
    manifests.sort(key=lambda manifest: (manifest.finished_at, manifest.digest))
    return SnapshotList(
        snapshots=[
            SnapshotSummary(
                digest=manifest.digest,
                path=manifest.path,
                made_at=manifest.finished_at,
                rows=manifest.rows_out,
                rejected=sum(manifest.rejected.values()),
                episodes=manifest.episodes,
                reward_family=manifest.reward_family,
                gamma=manifest.gamma,
                size_bytes=_size_bytes(manifest),
                held_bytes=sum(file.size_bytes for file in manifest.sources if is_linked_part(file.name)),
                is_pinned=manifest.digest in pins,
                pinned_because=pins[manifest.digest].reason if manifest.digest in pins else None,
                used_by=used_by.get(manifest.digest, []),
            )
            for manifest in manifests
        ],
        unreadable=unreadable,
    )


def uses(home: Home) -> Mapping[str, list[SnapshotUse]]:
    """Return, by snapshot, every policy trained on it, directly or through an ancestor, and every judged Karn."""
    known = {training.digest: training for training in trainings(home)}
    statuses = policy_statuses(home)
    used_by: dict[str, list[SnapshotUse]] = defaultdict(list)
    for policy, own in known.items():
        read = dict.fromkeys(training.snapshot_digest for training in ancestors(policy, known))
        for snapshot in read:
            use = SnapshotUse(
                policy=policy,
                standing=statuses.get(policy, PolicyStatus.UNJUDGED),
                is_direct=snapshot == own.snapshot_digest,
            )
            used_by[snapshot].append(use)
    registered = (
        entry for model in MODELS for entry in [*champion_versions(home, model), *candidate_versions(home, model)]
    )
    for version in registered:
        if version.digest not in known:  # its training receipt is lost, but the registry names the snapshot
            judged = statuses.get(version.digest, PolicyStatus.UNJUDGED)
            use = SnapshotUse(policy=version.digest, standing=judged, is_direct=True)
            if use not in used_by[version.snapshot_digest]:
                used_by[version.snapshot_digest].append(use)
    return used_by


def without_training_receipt(home: Home) -> list[PolicyVersion]:
    """Return the registered versions whose training receipt is lost, and with it the name of their ancestor."""
    known = {training.digest for training in trainings(home)}
    registered = {version.digest: version for version in [*candidate_versions(home), *champion_versions(home)]}
    return [version for digest, version in registered.items() if digest not in known]


def policy_statuses(home: Home) -> dict[str, PolicyStatus]:
    """Return the status of every policy and Karn that the gate judged or that became champion."""
    statuses = {
        decision.policy_digest: PolicyStatus.ACCEPTED if decision.accepted else PolicyStatus.REJECTED
        for decision in gate_decisions(home)
    }
    for model in MODELS:
        versions = champion_versions(home, model)
        statuses |= {version.digest: PolicyStatus.FORMER for version in versions}
        statuses |= {last.digest: PolicyStatus.CHAMPION for last in versions[-1:]}
    return statuses


def _size_bytes(manifest: SnapshotManifest) -> int:
    manifest_bytes = (Path(manifest.path) / MANIFEST_NAME).stat().st_size
    own = [*manifest.files, *(file for file in manifest.sources if not is_linked_part(file.name))]
    return manifest_bytes + sum(file.size_bytes for file in own)
