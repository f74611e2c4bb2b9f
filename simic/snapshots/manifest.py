"""The manifest of a snapshot: writing, reading, and verification of files against it.

A snapshot is a folder ``<snapshots>/<first 16 characters of its digest>/`` that is complete and never changes. The
digest covers its own files and the SQL that made them. One of these files, ``curation.json``, holds the settings that
affect rows; times, paths and limits of memory or threads are not covered. States lie in the lake's parts that the
snapshot links (see ``parts``). Each row names its state by content digest, so the snapshot's digest covers what the
states are, but not where they lie.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path

from pydantic import ValidationError

from simic.contracts.errors import IntegrityError
from simic.contracts.faults import describe_faults
from simic.contracts.file_digest import FileDigest
from simic.contracts.results.receipts import SnapshotManifest
from simic.contracts.rewards import RewardConfig
from simic.contracts.settings.run import CurateConfig
from simic.runtime.files import move_to_damaged, publish_dir, sha256_file
from simic.runtime.home import FOLDER_CHARACTERS
from simic.snapshots.parts import ROW_INDEX_NAME, is_linked_part
from simic.trust.canonical import canonical_bytes, digest_of

__all__ = [
    "MANIFEST_NAME",
    "SETTINGS_NAME",
    "Verify",
    "describe_files",
    "file_problems",
    "identity_problems",
    "publish",
    "read_manifest",
    "settings_problems",
    "snapshot_digest",
    "write_settings",
]

MANIFEST_NAME = "manifest.json"
SETTINGS_NAME = "curation.json"
_NOT_LISTED = {"memory_limit_mb", "threads", "flags"}
"""Settings of curation that ``config`` of the settings file leaves out: those without effect on rows, and the
thresholds of flags, which ``constants`` lists."""
_LOG = logging.getLogger(__name__)


class Verify(Enum):
    """How much of a snapshot is verified when its manifest is read."""

    ALL = "all"
    """Size and SHA-256 of every file, no file missing or added, digest, discount and reward."""
    SIZES = "sizes"
    """The same without reading the files: sizes instead of SHA-256."""
    NONE = "none"
    """Nothing but the form of the manifest."""


def read_manifest(path: Path, verify: Verify = Verify.ALL) -> SnapshotManifest:
    """Read the manifest of the snapshot at ``path`` and verify the snapshot against it.

    The manifest's ``path`` is set to where the snapshot lies now; its home may have moved.

    Raises:
        IntegrityError: if the manifest cannot be read, and for the first problem that the verification finds.
    """
    try:
        manifest = SnapshotManifest.model_validate_json((path / MANIFEST_NAME).read_bytes())
    except OSError as error:
        raise IntegrityError(f"{path} is not a snapshot: cannot read {MANIFEST_NAME} ({error.strerror})") from error
    except ValidationError as error:
        faults = describe_faults(error, "manifest")
        raise IntegrityError(f"{path / MANIFEST_NAME} is not a manifest: {faults}") from error
    if verify is not Verify.NONE and (problem := next(_problems(path, manifest, verify), None)):
        raise IntegrityError(f"snapshot {path}: {problem}; run `simic curate` again")
    return manifest.model_copy(update={"path": str(path)})


def _problems(folder: Path, manifest: SnapshotManifest, verify: Verify) -> Iterator[str]:
    yield from (problem for _, problem in file_problems(folder, manifest, verify) if problem)
    if problem := _digest_problem(manifest):
        yield problem
    yield from settings_problems(folder, manifest)


def file_problems(folder: Path, manifest: SnapshotManifest, verify: Verify) -> Iterator[tuple[str, str | None]]:
    """Yield every listed file with its problem or None, then every file that the manifest does not list."""
    listed = [*manifest.files, *manifest.sources]
    for file in listed:
        yield file.name, _file_problem(folder, file, verify)
    known = {file.name for file in listed} | {MANIFEST_NAME}
    for path in sorted(folder.iterdir()):
        if path.name not in known:
            yield path.name, f"{path.name}: not part of the snapshot"


def identity_problems(folder: Path, manifest: SnapshotManifest) -> Iterator[str]:
    """Yield contradictions to the digest in the manifest: digest of the file list, name of the folder."""
    if problem := _digest_problem(manifest):
        yield problem
    if folder.name != manifest.digest[:FOLDER_CHARACTERS]:
        yield f"{MANIFEST_NAME}: is of snapshot {manifest.digest[:FOLDER_CHARACTERS]}, in the folder {folder.name}"


def settings_problems(folder: Path, manifest: SnapshotManifest) -> Iterator[str]:
    """Yield each of gamma, reward family and reward digest that differs from the settings in ``curation.json``.

    No digest covers the manifest itself. A manifest that lists no settings yields nothing; settings of versions with
    one reward family only name no family.
    """
    if SETTINGS_NAME not in {file.name for file in manifest.files}:
        return
    try:
        config = json.loads((folder / SETTINGS_NAME).read_bytes())["config"]
        gamma, reward = config["gamma"], config["reward"]
        sealed = {"gamma": gamma}
        if "family" in reward:
            sealed |= {"reward_family": reward["family"], "reward_digest": digest_of(reward)}
    except (OSError, ValueError, LookupError, TypeError) as error:
        yield f"{SETTINGS_NAME}: holds no settings of a curation: {error!r}"
        return
    for name, expected in sealed.items():
        if (found := getattr(manifest, name)) != expected:
            yield f"{MANIFEST_NAME}: says {name} {found}, but {SETTINGS_NAME} was sealed with {expected}"


def other_prices(manifest: SnapshotManifest, reward: RewardConfig) -> list[str]:
    """Return each price by which the returns of a snapshot differ from those at ``reward``, in words.

    Raises:
        IntegrityError: if the settings of its curation cannot be read.
    """
    path = Path(manifest.path) / SETTINGS_NAME
    if SETTINGS_NAME not in {file.name for file in manifest.files}:
        return ["it does not say which"]
    try:
        sealed = json.loads(path.read_bytes())["config"]["reward"]
        return [
            f"{name} {sealed[name]:.15g} instead of {price:.15g}"
            for name, price in reward.model_dump(exclude={"family"}).items()
            if sealed[name] != price
        ]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise IntegrityError(f"{path}: holds no prices of a curation ({error!r}); run `simic curate` again") from error


def _digest_problem(manifest: SnapshotManifest) -> str | None:
    expected = snapshot_digest(manifest.files, manifest.sql_digest)
    if manifest.digest == expected:
        return None
    return f"{MANIFEST_NAME}: says digest {manifest.digest}, but its files and rules give {expected}"


def _file_problem(folder: Path, file: FileDigest, verify: Verify) -> str | None:
    path = folder / file.name
    if not path.is_file():
        return f"{file.name}: missing"
    if (size := path.stat().st_size) != file.size_bytes:
        return f"{file.name}: expected {file.size_bytes} bytes, found {size}"
    if verify is Verify.ALL and (digest := sha256_file(path)) != file.sha256:
        return f"{file.name}: expected SHA-256 {file.sha256}, found {digest}"
    return None


def write_settings(directory: Path, config: CurateConfig, horizon: int, constants: Mapping[str, object]) -> None:
    """Write the settings and the constants of curation that affect rows."""
    settings = {
        "config": config.model_dump(mode="json", exclude=_NOT_LISTED),
        "horizon": horizon,
        "constants": dict(constants),
    }
    (directory / SETTINGS_NAME).write_bytes(canonical_bytes(settings))


def describe_files(directory: Path) -> tuple[list[FileDigest], list[FileDigest]]:
    """Return the snapshot's own files and the sources of its states in ``directory``, each sorted by name."""
    files: tuple[list[FileDigest], list[FileDigest]] = ([], [])
    for path in sorted(directory.iterdir()):
        if path.name != MANIFEST_NAME:
            described = FileDigest(name=path.name, sha256=sha256_file(path), size_bytes=path.stat().st_size)
            files[_is_source(path.name)].append(described)
    return files


def _is_source(name: str) -> bool:
    return name == ROW_INDEX_NAME or is_linked_part(name)


def snapshot_digest(files: Iterable[FileDigest], sql_digest: str) -> str:
    """Return the digest that identifies a snapshot, over its own files and the SQL."""
    return digest_of({"files": [file.model_dump(mode="json") for file in files], "sql_digest": sql_digest})


def publish(built: Path, manifest: SnapshotManifest) -> SnapshotManifest:
    """Move a finished directory to ``manifest.path``, or return the manifest of the identical snapshot there.

    A damaged snapshot at that path is moved to ``damaged`` and replaced: the one just built has the same content.
    """
    target = Path(manifest.path)
    if target.exists():
        try:
            return _identical(target, manifest.digest)
        except IntegrityError as error:
            _LOG.warning("%s; moved to %s", error, move_to_damaged(target))
    relative = manifest.model_copy(update={"path": str(Path(*target.parts[-3:]))})  # to the home, which may move
    (built / MANIFEST_NAME).write_bytes(canonical_bytes(relative))
    publish_dir(built, target)
    return manifest


def _identical(path: Path, digest: str) -> SnapshotManifest:
    existing = read_manifest(path)
    if existing.digest != digest:
        raise IntegrityError(f"{path} holds snapshot {existing.digest}, expected {digest}")
    return existing
