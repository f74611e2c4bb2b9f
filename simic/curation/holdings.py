"""Which snapshots a home holds, which one a prefix means, and which policies learned from each."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from simic.contracts.errors import ConfigError, IntegrityError
from simic.contracts.receipts import PolicyVersion, SnapshotManifest
from simic.contracts.snapshots import SnapshotList, SnapshotSummary, SnapshotUse, Standing
from simic.curation.snapshot import MANIFEST_NAME, identity_damage, read_manifest
from simic.lake.held import is_held_part
from simic.lake.pins import pinned
from simic.lake.policies import ancestors, candidate_versions, champion_versions, gate_decisions, trainings
from simic.runtime.settings import Home

__all__ = ["find_folder", "folders", "list_snapshots", "standings", "unreceipted", "uses"]

_DIGEST = re.compile(r"[0-9a-f]{4,64}")
_FOLDER_CHARACTERS = 16


def folders(home: Home) -> list[Path]:
    """Every folder that is or was a snapshot, by name."""
    return sorted(path for path in home.snapshots.glob("*") if path.is_dir())


def find_folder(home: Home, digest: str) -> Path:
    """The one snapshot whose digest begins with ``digest``, whole or damaged; ConfigError for none or several."""
    if not _DIGEST.fullmatch(digest):
        raise ConfigError(f"{digest!r} is not a digest or the beginning of one: 4 to 64 of 0-9 and a-f")
    fitting = [path for path in folders(home) if _is_meant(path, digest)]
    if len(fitting) != 1:
        what = "several snapshots begin" if fitting else "no snapshot begins"
        known = ", ".join(path.name for path in (fitting or folders(home))[:8]) or "none"
        raise ConfigError(f"{what} with {digest}; {'these do' if fitting else 'there are'}: {known}")
    return fitting[0]


def _is_meant(path: Path, digest: str) -> bool:
    """By the folder's name, and by the manifest where more is given than the name holds."""
    if not path.name.startswith(digest[:_FOLDER_CHARACTERS]):
        return False
    try:
        return len(digest) <= _FOLDER_CHARACTERS or read_manifest(path).digest.startswith(digest)
    except IntegrityError:
        return True


def list_snapshots(home: Home) -> SnapshotList:
    """All of them, oldest first; one whose manifest cannot be read or names another digest is named with what is wrong.

    Pins and uses are found by that digest, so it is never believed unchecked.
    """
    found: list[SnapshotManifest] = []
    unreadable: dict[str, str] = {}
    for path in folders(home):
        try:
            manifest = read_manifest(path)
        except IntegrityError as error:
            unreadable[path.name] = str(error)
            continue
        if damage := next(identity_damage(path, manifest), None):
            unreadable[path.name] = f"{path}: {damage}"
        else:
            found.append(manifest)
    used_by, pins = uses(home), pinned(home)
    found.sort(key=lambda manifest: (manifest.finished_at, manifest.digest))
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
                held_bytes=sum(file.size_bytes for file in manifest.sources if is_held_part(file.name)),
                is_pinned=manifest.digest in pins,
                pinned_because=pins[manifest.digest].reason if manifest.digest in pins else None,
                used_by=used_by.get(manifest.digest, []),
            )
            for manifest in found
        ],
        unreadable=unreadable,
    )


def uses(home: Home) -> Mapping[str, list[SnapshotUse]]:
    """By snapshot, every policy of this home whose training, or a training behind it, read that snapshot."""
    known = {training.digest: training for training in trainings(home)}
    standing = standings(home)
    found: dict[str, list[SnapshotUse]] = defaultdict(list)
    for policy, own in known.items():
        read = dict.fromkeys(training.snapshot_digest for training in ancestors(policy, known))
        for snapshot in read:
            use = SnapshotUse(
                policy=policy,
                standing=standing.get(policy, Standing.UNJUDGED),
                is_direct=snapshot == own.snapshot_digest,
            )
            found[snapshot].append(use)
    for version in [*champion_versions(home), *candidate_versions(home)]:
        if version.digest not in known:  # its receipt is gone: the registry still knows
            judged = standing.get(version.digest, Standing.UNJUDGED)
            use = SnapshotUse(policy=version.digest, standing=judged, is_direct=True)
            if use not in found[version.snapshot_digest]:
                found[version.snapshot_digest].append(use)
    return found


def unreceipted(home: Home) -> list[PolicyVersion]:
    """Registered versions whose receipt of training is gone, and with it from which policy each went on."""
    known = {training.digest for training in trainings(home)}
    registered = {version.digest: version for version in [*candidate_versions(home), *champion_versions(home)]}
    return [version for digest, version in registered.items() if digest not in known]


def standings(home: Home) -> dict[str, Standing]:
    """What became of every policy that was judged or promoted here."""
    found = {
        decision.policy_digest: Standing.ACCEPTED if decision.accepted else Standing.REJECTED
        for decision in gate_decisions(home)
    }
    versions = champion_versions(home)
    found |= {version.digest: Standing.FORMER for version in versions}
    if versions:
        found |= {last.digest: Standing.CHAMPION for last in {version.name: version for version in versions}.values()}
    return found


def _size_bytes(manifest: SnapshotManifest) -> int:
    manifest_bytes = (Path(manifest.path) / MANIFEST_NAME).stat().st_size
    own = [*manifest.files, *(file for file in manifest.sources if not is_held_part(file.name))]
    return manifest_bytes + sum(file.size_bytes for file in own)
