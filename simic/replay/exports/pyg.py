"""Shards for PyTorch Geometric: safetensors and JSON files, read as ``HeteroData``.

A shard holds whole episodes: ``NAME.safetensors`` holds the columns, ``NAME.json`` the identities of the episodes.
Graphs are stored as one table (features, offsets, edges) and split on reading.

Shapes: N steps, E episodes, G = N + E graphs, A heads, O operations, S slots of the steps, K blueprints.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils.data import Dataset

from simic.contracts.errors import ConfigError, IntegrityError
from simic.contracts.results.receipts import SnapshotManifest
from simic.controllers.graph import CONNECTS, MONITORS, GraphBatch, build
from simic.replay.exporting import (
    CARD_NAME,
    Counted,
    EpisodeInfo,
    ExportCard,
    ExportedEpisodes,
    Shard,
    describe,
    new_folder,
    stream_episodes,
    write_card,
)
from simic.replay.graph_table import GraphTable
from simic.runtime.files import sha256_file

if TYPE_CHECKING:
    from torch_geometric.data import HeteroData  # type: ignore[import-untyped]

__all__ = ["FORMAT", "SUMMARY", "PygExport", "hetero_data", "write"]

FORMAT = "pyg"
SUMMARY = "shards of HeteroData for PyTorch Geometric"

_SHARD_ROWS = 4096
_CACHED_SHARDS = 2
_HOW_TO_READ = """\
## Reading it

```python
from simic.replay.exports.pyg import PygExport
from torch_geometric.loader import DataLoader

steps = PygExport("this folder")        # len(steps) steps; steps[i] is a torch_geometric.data.HeteroData
loader = DataLoader(steps, batch_size=32)
```

`data["context"].x`, `data["slot"].x`, `data["layer"].x` and an `edge_index` per edge type; `data["slot"].available`
says per slot which operations may address it. Per step, with a leading axis of 1 so that batches stack: `action`,
`op_available`, `blueprint_available`, `log_prob_heads`, `log_prob_behaviour`, `reward`, `discount`, `return_to_go`,
`terminated`, `truncated`, `step`, `episode`. `steps.final(e)` is the state after episode e, `steps.info(e)` says whose
it is.
Without Simic: every tensor of a shard is named as here; rows of the graphs come first for all steps, then for the final
state of each episode, and `slot_ptr`, `layer_ptr`, `connects_ptr`, `monitors_ptr` hold the offsets of each graph.
"""


def write(
    manifest: SnapshotManifest,
    split: str,
    out: Path,
    *,
    blueprints: tuple[str, ...],
    code_version: str,
    on_episodes: Callable[[int], None] = lambda _: None,
    shard_rows: int = _SHARD_ROWS,
) -> ExportCard:
    """Export ``split`` of a verified snapshot to the new folder ``out``, in the memory of one shard.

    Equal snapshots give equal bytes.
    """
    shards: list[Shard] = []
    sets: set[str] = set()
    with new_folder(out) as folder:
        for episodes in stream_episodes(manifest, split, blueprints, shard_rows):
            name = f"shard-{len(shards):05d}"
            first = sum(shard.episodes for shard in shards)
            save_file(_tensors(episodes, manifest.gamma, first), folder / f"{name}.safetensors")
            infos = [info._asdict() for info in episodes.infos]
            (folder / f"{name}.json").write_text(json.dumps(infos, indent=0), "utf-8")
            shards.append(Shard(name=name, steps=len(episodes.rewards), episodes=len(infos)))
            sets |= {info.set for info in episodes.infos}
            on_episodes(len(infos))
        counted = Counted(
            episodes=sum(shard.episodes for shard in shards),
            steps=sum(shard.steps for shard in shards),
            sets=sorted(sets),
        )
        card = describe(manifest, FORMAT, split, blueprints, code_version, counted=counted)
        return write_card(folder, card.model_copy(update={"shards": shards}), _HOW_TO_READ)


def _tensors(episodes: ExportedEpisodes, gamma: float, first_episode: int) -> dict[str, Tensor]:
    graphs, count = episodes.graphs, len(episodes.rewards)
    within = np.repeat(np.arange(len(episodes.lengths)), episodes.lengths)
    stored = {
        "context_x": graphs.context_x,
        "slot_x": graphs.slot_x,
        "layer_x": graphs.layer_x,
        "slot_ptr": graphs.slot_ptr,
        "layer_ptr": graphs.layer_ptr,
        "connects": graphs.edges[CONNECTS],
        "connects_ptr": graphs.connects_ptr,
        "monitors": graphs.edges[MONITORS],
        "monitors_ptr": graphs.monitors_ptr,
        "action": torch.from_numpy(episodes.actions),
        "op_available": torch.from_numpy(episodes.masks.op),
        "slot_available": torch.from_numpy(episodes.masks.slot),
        "blueprint_available": torch.from_numpy(episodes.masks.blueprint),
        "log_prob_heads": torch.from_numpy(episodes.log_probs.heads),
        "log_prob_behaviour": torch.from_numpy(episodes.log_probs.joint),
        "reward": torch.from_numpy(episodes.rewards),
        "discount": torch.from_numpy(np.where(episodes.terminated, 0.0, gamma).astype(np.float32)),
        "return_to_go": torch.from_numpy(episodes.returns),
        "terminated": torch.from_numpy(episodes.terminated),
        "truncated": torch.from_numpy(episodes.truncated),
        "step": torch.from_numpy(np.arange(count) - episodes.starts[within]),
        "episode": torch.from_numpy(first_episode + within),
    }
    return {name: tensor.contiguous() for name, tensor in stored.items()}


class _Loaded(NamedTuple):
    """One shard in memory."""

    graphs: GraphTable
    tensors: dict[str, Tensor]
    infos: list[EpisodeInfo]


_PER_STEP = (
    "action", "op_available", "blueprint_available", "log_prob_heads", "log_prob_behaviour", "reward", "discount",
    "return_to_go", "terminated", "truncated", "step", "episode",
)  # fmt: skip


class PygExport(Dataset["HeteroData"]):
    """The steps of an export, in order; at most two shards are in memory.

    ``torch_geometric.loader.DataLoader`` batches them directly. Shuffling over several shards reads them repeatedly:
    shuffle within a shard, or export with few shards. The digest of a shard is verified when it is read; a difference
    raises IntegrityError.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        try:
            self.card = ExportCard.model_validate_json((self.path / CARD_NAME).read_bytes())
        except (OSError, ValueError) as error:
            raise IntegrityError(
                f"{self.path} is not an export of Simic: {CARD_NAME} cannot be read: {error}"
            ) from error
        self._sha256 = {file.path: file.sha256 for file in self.card.files}
        self._first_steps = list(accumulate((shard.steps for shard in self.card.shards), initial=0))
        self._first_episodes = list(accumulate((shard.episodes for shard in self.card.shards), initial=0))
        self._shard = lru_cache(maxsize=_CACHED_SHARDS)(self._load)

    def __len__(self) -> int:
        return self.card.steps

    def __getitem__(self, index: int) -> HeteroData:
        """Return the graph before step ``index``, with masks, action and outcome."""
        if not 0 <= index < len(self):
            raise IndexError(f"step {index} of {len(self)}")
        shard = bisect_right(self._first_steps, index) - 1
        loaded, row = self._shard(shard), index - self._first_steps[shard]
        data = _graph_of(loaded, row)
        slots = loaded.graphs.slot_ptr
        data["slot"].available = loaded.tensors["slot_available"][slots[row] : slots[row + 1]]
        for name in _PER_STEP:
            data[name] = loaded.tensors[name][row : row + 1]
        return data

    def __iter__(self) -> Iterator[HeteroData]:
        return (self[index] for index in range(len(self)))

    def final(self, episode: int) -> HeteroData:
        """Return the graph after an episode's last step."""
        shard = self._shard_of(episode)
        loaded = self._shard(shard)
        return _graph_of(loaded, self.card.shards[shard].steps + episode - self._first_episodes[shard])

    def info(self, episode: int) -> EpisodeInfo:
        """Return the identity of an episode."""
        shard = self._shard_of(episode)
        return self._shard(shard).infos[episode - self._first_episodes[shard]]

    def _shard_of(self, episode: int) -> int:
        if not 0 <= episode < self.card.episodes:
            raise IndexError(f"episode {episode} of {self.card.episodes}")
        return bisect_right(self._first_episodes, episode) - 1

    def _load(self, shard: int) -> _Loaded:
        name = self.card.shards[shard].name
        for file in (f"{name}.safetensors", f"{name}.json"):
            try:
                digest = sha256_file(self.path / file)
            except OSError as error:
                raise IntegrityError(f"{self.path / file} cannot be read: {error.strerror}") from error
            if digest != self._sha256.get(file):
                raise IntegrityError(f"{self.path / file}: expected SHA-256 {self._sha256.get(file)}, found {digest}")
        tensors = load_file(self.path / f"{name}.safetensors")
        graphs = build(
            *(tensors[part] for part in ("context_x", "slot_x", "layer_x", "slot_ptr", "layer_ptr")),
            **{part: tensors[part] for part in ("connects", "connects_ptr", "monitors", "monitors_ptr")},
        )
        infos = [EpisodeInfo(**info) for info in json.loads((self.path / f"{name}.json").read_text("utf-8"))]
        return _Loaded(GraphTable.of(graphs), tensors, infos)


def hetero_data(graphs: GraphBatch) -> HeteroData:
    """Return a whole batch as one ``HeteroData``; raise ConfigError if PyG is not installed."""
    try:
        from torch_geometric.data import HeteroData
    except ImportError as error:
        raise ConfigError(
            f"reading the export as HeteroData needs {error.name}: pip install -e '.[export]' in a checkout of Simic"
        ) from error
    data = HeteroData()
    data["context"].x, data["slot"].x, data["layer"].x = graphs.context_x, graphs.slot_x, graphs.layer_x
    for name, edge in graphs.edges.items():
        data[name].edge_index = edge
    return data


def _graph_of(loaded: _Loaded, row: int) -> HeteroData:
    """Return one graph of a shard, with nodes numbered from 0."""
    return hetero_data(loaded.graphs.take(torch.tensor([row])))
