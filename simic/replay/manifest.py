"""What a snapshot says of itself, believed only as far as its files agree."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from simic.contracts.errors import IntegrityError
from simic.contracts.receipts import SnapshotManifest
from simic.trust.canonical import file_sha256
from simic.trust.settings import settings_damage

__all__ = ["MANIFEST_NAME", "read_manifest"]

MANIFEST_NAME = "manifest.json"


def read_manifest(path: Path) -> SnapshotManifest:
    """Reads ``manifest.json``, checks every file it lists, and discount and reward against the sealed settings.

    Its ``path`` is where the snapshot lies now. Raises IntegrityError where a file differs.
    """
    try:
        manifest = SnapshotManifest.model_validate_json((path / MANIFEST_NAME).read_bytes())
    except OSError as error:
        raise IntegrityError(f"{path} is not a snapshot: {MANIFEST_NAME} cannot be read ({error.strerror})") from error
    except ValidationError as error:
        raise IntegrityError(f"{path / MANIFEST_NAME} is not a manifest: {error.errors()[0]['msg']}") from error
    for file in (*manifest.files, *manifest.sources):
        if not (path / file.name).is_file():
            raise IntegrityError(f"snapshot {path}: {file.name} is missing")
        if (found := file_sha256(path / file.name)) != file.sha256:
            raise IntegrityError(f"snapshot {path}: {file.name} should have SHA-256 {file.sha256}, found {found}")
    if damage := next(settings_damage(path, manifest), None):
        raise IntegrityError(f"snapshot {path}: {damage}; run `simic curate` again")
    return manifest.model_copy(update={"path": str(path)})
