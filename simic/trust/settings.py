"""What a snapshot's manifest says of its rewards, against the settings that are sealed beside the rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from simic.contracts.receipts import SnapshotManifest
from simic.trust.canonical import digest_of

__all__ = ["SETTINGS_NAME", "settings_damage"]

SETTINGS_NAME = "curation.json"


def settings_damage(folder: Path, manifest: SnapshotManifest) -> Iterator[str]:
    """Each of gamma, reward family and reward digest that is not as it was sealed at ``folder``.

    No digest covers the manifest itself. Nothing is said where it lists no settings; those from before there was a
    choice name no family.
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
            yield f"manifest.json: says {name} {found}, but {SETTINGS_NAME} was sealed with {expected}"
