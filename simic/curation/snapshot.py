"""A snapshot on disk: ``<snapshots>/<first 16 of its digest>/``, complete and never changed.

Its digest is taken over the digests of its own files and of the SQL. ``curation.json`` is one of the files and holds
the settings that decide over rows, so they count too; times, paths and limits of memory or threads do not. States lie
in the parts of the lake that it holds (see lake/held.py): each row names its content by digest, so what the states are
counts, and where they lie does not.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pydantic import ValidationError

from simic.contracts.config import CurateConfig
from simic.contracts.errors import IntegrityError
from simic.contracts.receipts import FileDigest, SnapshotManifest
from simic.lake.held import PLACES_NAME, is_held_part
from simic.runtime.aside import set_aside
from simic.runtime.durable import sync_folder
from simic.trust.canonical import canonical_bytes, digest_of, file_sha256
from simic.trust.settings import SETTINGS_NAME, settings_damage

__all__ = [
    "MANIFEST_NAME",
    "SETTINGS_NAME",
    "describe_files",
    "identity_damage",
    "publish",
    "read_manifest",
    "snapshot_digest",
    "verify_snapshot",
    "write_durably",
    "write_settings",
]

_LOG = logging.getLogger(__name__)
MANIFEST_NAME = "manifest.json"
_FOLDER_CHARACTERS = 16
_LIMITS = {"memory_limit_mb", "threads"}


def write_settings(directory: Path, config: CurateConfig, horizon: int, laws: Mapping[str, object]) -> None:
    """Writes the settings, and the constants that are none, that decide over rows."""
    settings = {"config": config.model_dump(mode="json", exclude=_LIMITS), "horizon": horizon, "laws": dict(laws)}
    (directory / SETTINGS_NAME).write_bytes(canonical_bytes(settings))


def describe_files(directory: Path) -> tuple[list[FileDigest], list[FileDigest]]:
    """What the snapshot in ``directory`` is, and the sources of its states; each sorted by name."""
    found: tuple[list[FileDigest], list[FileDigest]] = ([], [])
    for path in sorted(directory.iterdir()):
        if path.name != MANIFEST_NAME:
            described = FileDigest(name=path.name, sha256=file_sha256(path), size_bytes=path.stat().st_size)
            found[_is_source(path.name)].append(described)
    return found


def _is_source(name: str) -> bool:
    return name == PLACES_NAME or is_held_part(name)


def snapshot_digest(files: Iterable[FileDigest], sql_digest: str) -> str:
    """The snapshot's identity."""
    return digest_of({"files": [file.model_dump(mode="json") for file in files], "sql_digest": sql_digest})


def publish(built: Path, manifest: SnapshotManifest) -> SnapshotManifest:
    """Moves a finished directory to its place, or returns the manifest of the identical snapshot already there.

    A damaged one that stands there is set aside, for what was just built is what it was.
    """
    target = Path(manifest.path)
    if target.exists():
        try:
            return _identical(target, manifest.digest)
        except IntegrityError as error:
            _LOG.warning("%s; set aside as %s", error, set_aside(target))
    for file in manifest.files:
        _sync_file(built / file.name)
    _sync_file(built / PLACES_NAME)
    write_durably(built / MANIFEST_NAME, canonical_bytes(manifest))
    sync_folder(built)
    target.parent.mkdir(parents=True, exist_ok=True)
    built.rename(target)
    sync_folder(target.parent)
    return manifest


def _identical(path: Path, digest: str) -> SnapshotManifest:
    existing = verify_snapshot(path)
    if existing.digest != digest:
        raise IntegrityError(f"{path} holds snapshot {existing.digest}, expected {digest}")
    return existing


def verify_snapshot(path: Path) -> SnapshotManifest:
    """The manifest of the snapshot at ``path``; raises IntegrityError unless all of it is as it was sealed."""
    manifest = read_manifest(path)
    expected = {file.name: file for file in (*manifest.files, *manifest.sources)}
    found = {file.name: file for kind in describe_files(path) for file in kind}
    if differing := sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)):
        raise IntegrityError(
            f"snapshot {path}: {differing} were changed, lost or added since it was sealed; run `simic curate` again"
        )
    if manifest.digest != snapshot_digest(manifest.files, manifest.sql_digest):
        raise IntegrityError(f"snapshot {path}: its digest is not that of its files")
    if damage := next(settings_damage(path, manifest), None):
        raise IntegrityError(f"snapshot {path}: {damage}; run `simic curate` again")
    return manifest


def identity_damage(folder: Path, manifest: SnapshotManifest) -> Iterator[str]:
    """What contradicts the digest that the manifest at ``folder`` names, without a look at the files."""
    expected = snapshot_digest(manifest.files, manifest.sql_digest)
    if manifest.digest != expected:
        yield f"{MANIFEST_NAME}: says digest {manifest.digest}, but its files and rules give {expected}"
    if folder.name != manifest.digest[:_FOLDER_CHARACTERS]:
        yield f"{MANIFEST_NAME}: is of snapshot {manifest.digest[:_FOLDER_CHARACTERS]}, in the folder {folder.name}"


def read_manifest(path: Path) -> SnapshotManifest:
    """What the snapshot at ``path`` says of itself, unchecked; raises IntegrityError where it cannot be read.

    Its ``path`` is where the snapshot lies now, should its home have moved since.
    """
    try:
        manifest = SnapshotManifest.model_validate_json((path / MANIFEST_NAME).read_bytes())
    except OSError as error:
        raise IntegrityError(f"{path} is not a snapshot: cannot read {MANIFEST_NAME} ({error.strerror})") from error
    except ValidationError as error:
        raise IntegrityError(f"{path / MANIFEST_NAME} is not a manifest: {error.errors()[0]['msg']}") from error
    return manifest.model_copy(update={"path": str(path)})


def write_durably(path: Path, content: bytes) -> None:
    """Writes and syncs a file."""
    path.write_bytes(content)
    _sync_file(path)


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
