"""A Minari data set for Gymnasium, written through Minari's own storage.

A Gymnasium space has one shape, but the graphs of hosts differ, so nodes and edges are padded to the largest graph of
the export. ``*_valid`` marks real nodes; padded edges are -1. Gymnasium's Graph space would fit, but Minari cannot
serialise it.

Shapes: T steps of an episode, E episodes, G graphs, S, L, C, M the most slots, layers, ``connects`` and ``monitors``
edges of any graph, F features, A heads, O operations, K blueprints.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow.compute as pc  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray

from simic.contracts.actions import ALPHA_CURVES, ALPHA_SPEEDS, ALPHA_TARGETS, OPS, TEMPOS
from simic.contracts.errors import ConfigError
from simic.contracts.results.receipts import SnapshotManifest
from simic.controllers.features import BOUND, feature_names
from simic.replay.exporting import (
    Counted,
    EpisodeInfo,
    ExportCard,
    ExportedEpisodes,
    describe,
    new_folder,
    stream_episodes,
    write_card,
)
from simic.replay.graph_table import GraphTable
from simic.replay.rows import read_parts

if TYPE_CHECKING:
    from gymnasium import Space
    from minari.data_collector import EpisodeBuffer  # type: ignore[import-untyped]

__all__ = ["FORMAT", "SUMMARY", "write"]

FORMAT = "minari"
SUMMARY = "a Minari data set (needs the extra: export)"

_ROWS = 2048
_HOW_TO_READ = """\
## Reading it

```sh
MINARI_DATASETS_PATH="this folder" python -c 'import minari; print(minari.load_dataset("{dataset_id}")[0])'
```

An episode of T steps has T + 1 observations; the last one is the state after the last step. Observations are a Dict:
`context`; `slots` and `layers`, padded, with `slot_valid` and `layer_valid`; `connects` and `monitors`, rows of
(from, to), padded with -1. `infos` hold, for each of the T steps: `log_prob_behaviour`, `log_prob_heads`, what was
legal (`op_available`, `slot_available`, `blueprint_available`), `return_to_go`, and `policy_version` where the
controller had weights. The metadata of an episode say whose it is: `run_id`, `controller`, `set`, `family`, `host_key`;
those of a branch also have `branch_of` and `branch_step`.
"""


class _Sizes(NamedTuple):
    """Largest number of each in any graph."""

    slots: int
    layers: int
    connects: int
    monitors: int


def write(
    manifest: SnapshotManifest,
    split: str,
    out: Path,
    *,
    blueprints: tuple[str, ...],
    code_version: str,
    on_episodes: Callable[[int], None] = lambda _: None,
) -> ExportCard:
    """Export ``split`` of a verified snapshot to the new folder ``out``, a root for ``MINARI_DATASETS_PATH``.

    Reads the snapshot twice, in bounded memory.

    Raises:
        ConfigError: without the packages of the extra ``export``.
    """
    storage_type = _need("minari.dataset.minari_storage").MinariStorage
    sizes = _sizes(manifest, split)
    dataset_id = f"simic/{manifest.digest[:16]}-{split}-v0"
    tally = _Tally(on_episodes)
    with new_folder(out) as folder:
        data = folder / dataset_id / "data"
        data.mkdir(parents=True)
        storage = storage_type.new(
            data, _observation_space(sizes, blueprints), _action_space(sizes, blueprints), jpeg_encoding=False
        )
        chunks = stream_episodes(manifest, split, blueprints, _ROWS)
        storage.update_episodes(buffer for episodes in chunks for buffer in tally.noting(episodes, sizes))
        storage.update_episode_metadata(_metadata(manifest, split))
        storage.update_metadata(
            {
                "dataset_id": dataset_id,
                "minari_version": _need("minari").__version__,
                "description": f"Growth decisions of snapshot {manifest.digest}, split {split}; see README.md.",
                "snapshot": manifest.digest,
                "reward_family": manifest.reward_family,
                "gamma": manifest.gamma,
            }
        )
        card = describe(manifest, FORMAT, split, blueprints, code_version, counted=tally.counted())
        card = card.model_copy(update={"dataset_id": dataset_id})
        return write_card(folder, card, _HOW_TO_READ.format(dataset_id=dataset_id))


def _need(module: str) -> Any:
    try:
        importlib.import_module("h5py")
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"--format minari needs {error.name}: pip install -e '.[export]' in a checkout of Simic"
        ) from error


class _Tally:
    """Counts episodes and steps while they are written."""

    def __init__(self, on_episodes: Callable[[int], None]) -> None:
        self._on_episodes = on_episodes
        self._episodes = self._steps = 0
        self._sets: set[str] = set()

    def noting(self, episodes: ExportedEpisodes, sizes: _Sizes) -> Iterator[EpisodeBuffer]:
        """Yield the buffers of the episodes, and count them."""
        yield from _buffers(episodes, sizes)
        self._episodes += len(episodes.infos)
        self._steps += len(episodes.rewards)
        self._sets |= {info.set for info in episodes.infos}
        self._on_episodes(len(episodes.infos))

    def counted(self) -> Counted:
        """Return the counts so far."""
        return Counted(episodes=self._episodes, steps=self._steps, sets=sorted(self._sets))


def _sizes(manifest: SnapshotManifest, split: str) -> _Sizes:
    """Return sizes of at least 1, because Minari does not accept a Box of extent 0."""
    most = np.ones(4, dtype=np.int64)
    for rows in read_parts(manifest, split, _ROWS, ("state", "final_state")):
        for name in ("state", "final_state"):
            states = rows.column(name).combine_chunks()
            lists = (["slots"], ["graph", "layers"], ["graph", "connects"], ["graph", "monitors"])
            lengths = [pc.max(pc.list_value_length(pc.struct_field(states, place))).as_py() for place in lists]
            most = np.maximum(most, [length or 0 for length in lengths])
    return _Sizes(*most.tolist())


def _observation_space(sizes: _Sizes, blueprints: tuple[str, ...]) -> Space[Any]:
    from gymnasium.spaces import Box, Dict, MultiBinary

    names = feature_names(blueprints)

    def features(node: str, *shape: int) -> Box:
        return Box(-BOUND, BOUND, (*shape, len(names[node])), np.float32)

    most = max(sizes.slots, sizes.layers)
    return Dict(
        {
            "context": features("context"),
            "slots": features("slot", sizes.slots),
            "slot_valid": MultiBinary(sizes.slots),
            "layers": features("layer", sizes.layers),
            "layer_valid": MultiBinary(sizes.layers),
            "connects": Box(-1, most - 1, (sizes.connects, 2), np.int64),
            "monitors": Box(-1, most - 1, (sizes.monitors, 2), np.int64),
        }
    )


def _action_space(sizes: _Sizes, blueprints: tuple[str, ...]) -> Space[Any]:
    """Return a space from -1, which marks a factor that the operation does not use."""
    from gymnasium.spaces import MultiDiscrete

    counts = (
        len(OPS),
        sizes.slots,
        len(blueprints),
        len(ALPHA_TARGETS),
        len(ALPHA_SPEEDS),
        len(ALPHA_CURVES),
        len(TEMPOS),
    )
    return MultiDiscrete([count + 1 for count in counts], start=[-1] * len(counts))


def _buffers(episodes: ExportedEpisodes, sizes: _Sizes) -> Iterator[EpisodeBuffer]:
    """Yield one observation per episode, cut from the padded columns of all."""
    buffer = _need("minari.data_collector").EpisodeBuffer
    observations = _padded_graphs(episodes, sizes)
    slots = _pad(episodes.masks.slot, episodes.graphs.slot_ptr.numpy()[: len(episodes.rewards) + 1], sizes.slots, False)
    for index, info in enumerate(episodes.infos):
        start, length = int(episodes.starts[index]), int(episodes.lengths[index])
        steps = slice(start, start + length)
        graphs = np.append(np.arange(start, start + length), len(episodes.rewards) + index)
        yield buffer(
            observations={name: values[graphs] for name, values in observations.items()},
            actions=episodes.actions[steps],
            rewards=episodes.rewards[steps],
            terminations=episodes.terminated[steps],
            truncations=episodes.truncated[steps],
            infos={
                "log_prob_behaviour": episodes.log_probs.joint[steps],
                "log_prob_heads": episodes.log_probs.heads[steps],
                "op_available": episodes.masks.op[steps],
                "slot_available": slots[steps],
                "blueprint_available": episodes.masks.blueprint[steps],
                "return_to_go": episodes.returns[steps],
                **_version_info(info, length),
            },
        )


def _version_info(info: EpisodeInfo, length: int) -> dict[str, list[str]]:
    return {} if info.policy_version is None else {"policy_version": [info.policy_version] * length}


def _padded_graphs(episodes: ExportedEpisodes, sizes: _Sizes) -> dict[str, NDArray[Any]]:
    """Return columns [G, ...] as the observation space has them."""
    graphs = GraphTable.of(episodes.graphs)
    slot_ptr, layer_ptr = graphs.slot_ptr.numpy(), graphs.layer_ptr.numpy()
    connects, monitors = (edges.to(torch.int64).numpy() for edges in (graphs.connects, graphs.monitors))
    return {
        "context": graphs.context_x.numpy(),
        "slots": _pad(graphs.slot_x.numpy(), slot_ptr, sizes.slots, 0.0),
        "slot_valid": _valid(slot_ptr, sizes.slots),
        "layers": _pad(graphs.layer_x.numpy(), layer_ptr, sizes.layers, 0.0),
        "layer_valid": _valid(layer_ptr, sizes.layers),
        "connects": _pad(connects, graphs.connects_ptr.numpy(), sizes.connects, -1),
        "monitors": _pad(monitors, graphs.monitors_ptr.numpy(), sizes.monitors, -1),
    }


def _pad(values: NDArray[Any], ptr: NDArray[np.int64], width: int, empty: float) -> NDArray[Any]:
    """Pad rows [rows, ...] at offsets ``ptr`` [G + 1] to [G, width, ...]."""
    lengths = np.diff(ptr)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    out = np.full((len(lengths), width, *values.shape[1:]), empty, dtype=values.dtype)
    out[owner, np.arange(len(owner)) - np.repeat(ptr[:-1] - ptr[0], lengths)] = values[: len(owner)]
    return out


def _valid(ptr: NDArray[np.int64], width: int) -> NDArray[np.int8]:
    return (np.arange(width) < np.diff(ptr)[:, None]).astype(np.int8)


def _metadata(manifest: SnapshotManifest, split: str) -> Iterator[dict[str, Any]]:
    """Yield one record per episode, in order; absent values are left out."""
    names = list(EpisodeInfo._fields)
    for rows in read_parts(manifest, split, _ROWS, ()):
        is_first = pc.equal(rows.column("step"), 0)
        for row in rows.filter(is_first).select(names).to_pylist():
            yield {name: value for name, value in row.items() if value is not None}
