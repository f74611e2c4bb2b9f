"""What an export says of itself: ``card.json`` for programs, ``README.md`` for people."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from simic.contracts.actions import ALPHA_CURVES, ALPHA_SPEEDS, ALPHA_TARGETS, OPS, TEMPOS
from simic.contracts.base import Contract, Count, Digest
from simic.contracts.receipts import SnapshotManifest
from simic.controllers.features import BOUND, FEATURE_VERSION, feature_names
from simic.trust.canonical import canonical_bytes, file_sha256

__all__ = ["CARD_NAME", "README_NAME", "Counted", "ExportCard", "ExportFile", "Shard", "describe", "write_card"]

CARD_NAME = "card.json"
README_NAME = "README.md"

Text = Annotated[str, Field(max_length=4096)]


class ExportFile(Contract):
    """One file of an export."""

    path: Text
    """Below the export, with slashes."""
    sha256: Digest
    size_bytes: Count


class Shard(Contract):
    """One pair of files of an export for PyTorch Geometric."""

    name: Text
    """Without the ending."""
    steps: Count
    episodes: Count


class ExportCard(Contract):
    """Which rows these are and how to read them; holds nothing that differs between two exports of one snapshot."""

    schema_version: Literal[1] = 1
    format: Literal["minari", "pyg"]
    snapshot: Digest
    split: Text
    sets: list[Text]
    """Worlds that the hosts belong to."""
    reward_family: Text
    gamma: float
    """Discount per step; the horizon is an end, so the last step of a terminated episode has none."""
    episodes: Count
    steps: Count
    feature_version: Text
    features: dict[str, list[Text]]
    """Columns per kind of node, in order; all lie within ``feature_bound`` of 0."""
    feature_bound: float
    choices: dict[str, list[str | float]]
    """What an index means, per factor of the action, in order; a slot is its position in the host."""
    code_version: Text
    dataset_id: Text | None = None
    """Minari's name for it."""
    shards: list[Shard] = Field(default_factory=list)
    """In order; only for PyTorch Geometric."""
    files: list[ExportFile]
    """All but the card itself."""


class Counted(Contract):
    """What became known while writing."""

    episodes: Count
    steps: Count
    sets: list[Text]


def describe(
    manifest: SnapshotManifest,
    format_name: Literal["minari", "pyg"],
    split: str,
    blueprints: tuple[str, ...],
    code_version: str,
    *,
    counted: Counted,
) -> ExportCard:
    """A card without files yet."""
    return ExportCard(
        format=format_name,
        snapshot=manifest.digest,
        split=split,
        reward_family=manifest.reward_family,
        gamma=manifest.gamma,
        feature_version=FEATURE_VERSION,
        features={node: list(names) for node, names in feature_names(blueprints).items()},
        feature_bound=BOUND,
        choices={
            "op": [op.value for op in OPS],
            "slot": [],
            "blueprint": list(blueprints),
            "alpha_target": list(ALPHA_TARGETS),
            "alpha_speed": list(ALPHA_SPEEDS),
            "alpha_curve": [curve.value for curve in ALPHA_CURVES],
            "tempo": list(TEMPOS),
        },
        code_version=code_version,
        files=[],
        **counted.model_dump(),
    )


def write_card(folder: Path, card: ExportCard, how_to_read: str) -> ExportCard:
    """Writes README and card into ``folder`` and returns the card with every file in it."""
    (folder / README_NAME).write_text(_readme(card, how_to_read), "utf-8")
    complete = card.model_copy(update={"files": list(_files(folder))})
    (folder / CARD_NAME).write_bytes(canonical_bytes(complete) + b"\n")
    return complete


def _files(folder: Path) -> Iterable[ExportFile]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield ExportFile(
                path=path.relative_to(folder).as_posix(), sha256=file_sha256(path), size_bytes=path.stat().st_size
            )


def _readme(card: ExportCard, how_to_read: str) -> str:
    return f"""\
# Growth decisions, split {card.split}, of snapshot {card.snapshot[:16]}

Networks that grew while they trained, one decision per epoch: {card.episodes} whole episodes, {card.steps} steps.
Sets of hosts: {", ".join(card.sets)}. Made by Simic {card.code_version} from the snapshot

    {card.snapshot}

- Rewards: family `{card.reward_family}`, in points, discounted by {card.gamma:g} per step.
  A step is one epoch of the host.
- `terminated`: the episode ended by itself, at its horizon or by the governor. `truncated`: it was cut off.
- An action has the factors {", ".join(f"`{name}`" for name in card.choices)}, each an index into its
  choices, -1 where the operation does not use it. `card.json` lists the choices.
- Log-probabilities are natural logarithms of how likely the acting controller was to do what it did.
- The observation is a graph: one context node, nodes for slots and layers, `connects` edges from layer to layer and
  `monitors` edges from slot to layer. Features are fixed, bounded transforms (version `{card.feature_version}`);
  `card.json` names every column. Nothing in them tells the host's family or its key.
- A host belongs to one split for ever: training on this export and judging on another split shares no host.

{how_to_read}
`card.json` has the SHA-256 of every file. No file holds anything but numbers and text: nothing is unpickled.
"""
