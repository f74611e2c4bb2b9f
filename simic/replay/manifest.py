"""What a snapshot says of itself, believed only as far as its files agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from simic.contracts.errors import ContractViolation, IntegrityError
from simic.trust.canonical import file_sha256

__all__ = ["MANIFEST_NAME", "SnapshotFacts", "read_manifest"]

MANIFEST_NAME = "manifest.json"


class SnapshotFacts(NamedTuple):
    """What the learner needs to know beside the rows."""

    digest: str
    gamma: float


def read_manifest(path: Path) -> SnapshotFacts:
    """Reads ``manifest.json`` and checks every file it lists; raises IntegrityError where one differs."""
    try:
        manifest = json.loads((path / MANIFEST_NAME).read_bytes())
        files: list[dict[str, Any]] = manifest["files"]
        facts = SnapshotFacts(str(manifest["digest"]), float(manifest["gamma"]))
    except FileNotFoundError as error:
        raise IntegrityError(f"{path} is not a snapshot: {MANIFEST_NAME} is missing") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ContractViolation(f"{path / MANIFEST_NAME} is not a snapshot's manifest: {error!r}") from error
    for file in files:
        name = Path(str(file["name"])).name
        if not (path / name).is_file():
            raise IntegrityError(f"snapshot {path}: {name} is missing")
        if (found := file_sha256(path / name)) != file["sha256"]:
            raise IntegrityError(f"snapshot {path}: {name} should have SHA-256 {file['sha256']}, found {found}")
    return facts
