"""Common parts of exports: streamed episodes, the export folder, its ``card.json`` and ``README.md``."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray
from pydantic import Field

from simic.contracts.actions import ALPHA_CURVES, ALPHA_SPEEDS, ALPHA_TARGETS, OPS, TEMPOS
from simic.contracts.base import Contract, Count, Digest, Text
from simic.contracts.batches import Masks, Observations
from simic.contracts.errors import ConfigError, ContractError, TransientError
from simic.contracts.results.receipts import SnapshotManifest
from simic.controllers.features import BOUND, FEATURE_VERSION, encode, feature_names
from simic.controllers.graph import GraphBatch
from simic.replay.decode import Propensities, column, flags
from simic.replay.rows import episode_batch_of, read_parts
from simic.runtime.files import atomic_dir, sha256_file
from simic.trust.canonical import canonical_bytes

__all__ = [
    "CARD_NAME",
    "README_NAME",
    "Counted",
    "EpisodeInfo",
    "ExportCard",
    "ExportFile",
    "ExportedEpisodes",
    "Shard",
    "describe",
    "new_folder",
    "stream_episodes",
    "write_card",
]

CARD_NAME = "card.json"
README_NAME = "README.md"

FormatName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]


class ExportFile(Contract):
    """One file of an export."""

    path: Text
    """Path relative to the export, with slashes."""
    sha256: Digest
    size_bytes: Count


class Shard(Contract):
    """One pair of files of an export for PyTorch Geometric."""

    name: Text
    """Path without the suffix."""
    steps: Count
    episodes: Count


class ExportCard(Contract):
    """Content and schema of an export; identical for two exports of one snapshot."""

    schema_version: Literal[1] = 1
    format: FormatName
    """Name of a module of ``simic.replay.exports``, or of an installed export."""
    snapshot: Digest
    split: Text
    sets: list[Text]
    """Host sets of the episodes."""
    reward_family: Text
    gamma: float
    """Discount per step. The horizon ends an episode, so the last step of a terminated episode has none."""
    episodes: Count
    steps: Count
    feature_version: Text
    features: dict[str, list[Text]]
    """Columns per node type, in order; all values lie within ``feature_bound`` of 0."""
    feature_bound: float
    choices: dict[str, list[str | float]]
    """Choices by index per factor of the action; a slot is its position in the host."""
    code_version: Text
    dataset_id: Text | None = None
    """Name of the Minari data set."""
    shards: list[Shard] = Field(default_factory=list)
    """Shards in order; only for PyTorch Geometric."""
    files: list[ExportFile]
    """All files except the card."""


class Counted(Contract):
    """Counts of a finished export."""

    episodes: Count
    steps: Count
    sets: list[Text]


def describe(
    manifest: SnapshotManifest,
    format_name: str,
    split: str,
    blueprints: tuple[str, ...],
    code_version: str,
    *,
    counted: Counted,
) -> ExportCard:
    """Return the card of an export, without its files."""
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
    """Write README and card into ``folder``; returns the card with the digests of all files."""
    (folder / README_NAME).write_text(_readme(card, how_to_read), "utf-8")
    complete = card.model_copy(update={"files": list(_files(folder))})
    (folder / CARD_NAME).write_bytes(canonical_bytes(complete) + b"\n")
    return complete


def _files(folder: Path) -> Iterable[ExportFile]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield ExportFile(
                path=path.relative_to(folder).as_posix(), sha256=sha256_file(path), size_bytes=path.stat().st_size
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
- A branch (`branch_of`, `branch_step` of an episode) repeats the episode `branch_of` up to that step, where its action
  was enumerated, not chosen by the controller. Leave branches out of what you take for the behaviour of a controller.
- A host belongs to one split for ever: training on this export and judging on another split shares no host.

{how_to_read}
`card.json` has the SHA-256 of every file. No file holds anything but numbers and text: nothing is unpickled.
"""


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a folder that becomes ``out``, durably, when the block succeeds, and is removed otherwise.

    Leftovers of a killed process are removed first. Raises ConfigError if ``out`` is not empty. The caller ensures that
    nobody else writes the same folder.
    """
    out = out.absolute()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(
            f"{out} exists already; name a new folder, because an export is never merged with existing files"
        )
    try:
        with atomic_dir(out) as unfinished:
            yield unfinished
            _open_to_readers(unfinished)
    except OSError as error:
        raise TransientError(f"{out} cannot be written: {error}; check space and permissions") from error


def _open_to_readers(folder: Path) -> None:
    """Give every file the mode of a new one under the umask: some writers make files readable by their owner only."""
    new = folder / ".new"
    new.touch()
    mode = stat.S_IMODE(new.stat().st_mode)
    new.unlink()
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(mode)


class EpisodeInfo(NamedTuple):
    """Identity of an episode."""

    run_id: str
    policy_version: str | None
    """Digest of the policy; null for a controller without weights."""
    controller: str
    set: str
    family: str
    host_key: int
    branch_of: str | None = None
    """Run id of a branch's parent; null for other episodes."""
    branch_step: int | None = None
    """Step at which a branch leaves its parent; null for other episodes."""


class ExportedEpisodes(NamedTuple):
    """Whole episodes, in the snapshot's order."""

    infos: list[EpisodeInfo]
    """[E]"""
    starts: NDArray[np.int64]
    """[E]: first step of each episode."""
    lengths: NDArray[np.int64]
    """[E]"""
    graphs: GraphBatch
    """G graphs: the state before each step, then the final state of each episode."""
    masks: Masks
    """Action masks of each step; slots [S, ops] are those of the first N graphs."""
    actions: NDArray[np.int64]
    """[N, A], -1 where irrelevant."""
    log_probs: Propensities
    """Log-probabilities of the behaviour, [N, A] and [N]."""
    rewards: NDArray[np.float32]
    """[N], points."""
    returns: NDArray[np.float32]
    """[N]: discounted return from the step to the last one."""
    terminated: NDArray[np.bool_]
    """[N]"""
    truncated: NDArray[np.bool_]
    """[N]"""


def stream_episodes(
    manifest: SnapshotManifest, split: str, blueprints: tuple[str, ...], rows: int
) -> Iterator[ExportedEpisodes]:
    """Yield the episodes of ``split`` in a verified snapshot, about ``rows`` steps at a time.

    The columns equal those that ``GraphDataset.load`` makes of the same rows. ``blueprints`` is the vocabulary of the
    hosts.

    Raises:
        ContractError: for rows that training would refuse.
    """
    seen: set[str] = set()
    for table in read_parts(manifest, split, rows):
        episodes = _episodes(table, blueprints)
        run_ids = {info.run_id for info in episodes.infos}
        if run_ids & seen:
            raise ContractError("rows must be whole episodes in order; a run's rows stand in two places")
        seen |= run_ids
        yield episodes


def _episodes(table: pa.Table, blueprints: tuple[str, ...]) -> ExportedEpisodes:
    # Exports hold no discounts, so any gamma will do.
    part = episode_batch_of(table, blueprints, gamma=1.0)
    heads = table.select(list(EpisodeInfo._fields)).take(part.sequences.starts).to_pylist()
    return ExportedEpisodes(
        infos=[EpisodeInfo(**head) for head in heads],
        starts=part.sequences.starts,
        lengths=part.sequences.lengths,
        graphs=encode(Observations.join([part.states, part.finals])),
        masks=part.masks,
        actions=part.steps.actions.numpy(),
        log_probs=Propensities(part.steps.log_prob_heads.numpy(), part.steps.log_prob_behaviour.numpy()),
        rewards=part.steps.rewards.numpy(),
        returns=part.steps.returns.numpy(),
        terminated=flags(column(table, "terminated"), "terminated"),
        truncated=flags(column(table, "truncated"), "truncated"),
    )
