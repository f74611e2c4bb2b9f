"""A snapshot in memory: columns of steps, one table of graphs, and batches gathered from both.

Shapes: N steps, E sequences (episodes), T time, B sequences of a batch, A heads, K blueprints.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.contracts.actions import Head, Op
from simic.contracts.batches import HEAD_INDEX, OP_INDEX, Masks
from simic.contracts.errors import ContractViolation
from simic.controllers.features import encode
from simic.controllers.graph import GraphBatch
from simic.controllers.heads import MaskTensors
from simic.replay.arrow import column, flags, numbers, texts
from simic.replay.assemble import Places, Steps, assemble
from simic.replay.batch import SequenceBatch
from simic.replay.columns import actions_of, join, masks_of, observations_of, propensities_of
from simic.replay.manifest import read_manifest

__all__ = ["GraphStore", "Steps"]

STEPS_NAME = "steps.parquet"
_COLUMNS = (
    "run_id", "step", "set", "family", "host_key", "controller", "policy_version", "state", "final_state", "available",
    "action", "log_prob_behaviour", "reward", "return_to_go", "terminated", "truncated",
)  # fmt: skip


class Sequences(NamedTuple):
    """One row per episode."""

    run_ids: tuple[str, ...]
    policy_versions: tuple[str | None, ...]
    controllers: tuple[str, ...]
    sets: tuple[str, ...]
    families: tuple[str, ...]
    host_keys: NDArray[np.int64]
    starts: NDArray[np.int64]
    """[E] first step of each."""
    lengths: NDArray[np.int64]
    """[E]"""


class GraphStore:
    """Whole episodes of one split; features are encoded once, batches are gathered."""

    def __init__(
        self, sequences: Sequences, steps: Steps, masks: Masks, table: GraphBatch, blueprints: tuple[str, ...]
    ) -> None:
        """``table`` holds N + E graphs: all states, then the final state of each sequence."""
        self.sequences, self.steps, self.table, self.blueprints = sequences, steps, table, blueprints
        self.masks = MaskTensors.of(masks)
        if table.graphs != len(steps.rewards) + len(self):
            raise ContractViolation(f"{table.graphs} graphs for {len(steps.rewards)} steps and {len(self)} sequences")

    @staticmethod
    def load(path: Path, split: str = "train", *, blueprints: tuple[str, ...]) -> GraphStore:
        """The episodes of ``split`` in the snapshot at ``path``, after its files were checked against its manifest.

        ``blueprints`` is the vocabulary of the hosts. Raises IntegrityError for a file that is not what was
        snapshotted and ContractViolation for rows that cannot teach: gaps, missing propensities, missing final states.
        """
        manifest = read_manifest(path)
        table = _read(path / STEPS_NAME, split)
        sequences = _sequences(table)
        last = sequences.starts + sequences.lengths - 1
        observations = join(
            observations_of(column(table, "state"), blueprints),
            observations_of(_final_states(table, last), blueprints),
        )
        slot_ptr = observations.slot_ptr[: table.num_rows + 1]
        masks = masks_of(column(table, "available"), slot_ptr, blueprints)
        steps = _steps(table, last, blueprints, manifest.gamma)
        return GraphStore(sequences, steps, masks, encode(observations), blueprints)

    def __len__(self) -> int:
        return len(self.sequences.run_ids)

    @property
    def step_count(self) -> int:
        """N"""
        return len(self.steps.rewards)

    @property
    def set_name(self) -> str:
        """The world of all episodes; ContractViolation if there is not exactly one."""
        names = sorted(set(self.sequences.sets))
        if len(names) != 1:
            raise ContractViolation(f"a policy is trained for one world, the episodes come from {names}")
        return names[0]

    @property
    def germinated(self) -> tuple[str, ...]:
        """Blueprints that any episode germinated, in the order of the vocabulary."""
        is_germination = self.steps.actions[:, HEAD_INDEX[Head.OP]] == OP_INDEX[Op.GERMINATE]
        seen = set(self.steps.actions[is_germination, HEAD_INDEX[Head.BLUEPRINT]].tolist())
        return tuple(name for index, name in enumerate(self.blueprints) if index in seen)

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors held."""
        graphs = [x for x in self.table if isinstance(x, Tensor)]
        tensors = [*graphs, *self.table.edges.values(), *self.steps, *self.masks]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def batch(self, sequence_ids: NDArray[np.int64]) -> SequenceBatch:
        """The given sequences, in the given order, as one time-major batch."""
        return assemble(sequence_ids, self.places(sequence_ids), self.steps, self.masks, self.table)

    def places(self, sequence_ids: NDArray[np.int64]) -> Places:
        """Where the given sequences lie in ``steps`` and ``table``."""
        chosen = self.sequences.starts[sequence_ids], self.sequences.lengths[sequence_ids]
        return Places(*chosen, self.step_count + sequence_ids)


def _read(path: Path, split: str) -> pa.Table:
    missing = sorted({*_COLUMNS, "split"} - set(pq.read_schema(path).names))
    if missing:
        raise ContractViolation(f"{path} lacks the columns {missing}")
    return pq.read_table(path, columns=list(_COLUMNS), filters=[("split", "==", split)])


def _sequences(table: pa.Table) -> Sequences:
    """Episode bounds; rows must come sorted by (run_id, step), with steps 0, 1, 2 ... up to an end."""
    if not table.num_rows:
        empty = np.zeros(0, dtype=np.int64)
        return Sequences((), (), (), (), (), empty, empty, empty)
    run_id = column(table, "run_id").cast(pa.string())
    starts_here = np.concatenate([[True], pc.not_equal(run_id[1:], run_id[:-1]).to_numpy(zero_copy_only=False)])
    starts = np.flatnonzero(starts_here).astype(np.int64)
    lengths = np.diff(np.append(starts, table.num_rows))
    heads = table.select(["run_id", "policy_version", "controller", "set", "family", "host_key"]).take(starts)
    run_ids = _texts(heads, "run_id")
    step = numbers(column(table, "step"), np.int64, "step")
    expected = np.arange(table.num_rows) - np.repeat(starts, lengths)
    if len(set(run_ids)) != len(run_ids) or (step != expected).any():
        row = int(np.argmax(step != expected))
        raise ContractViolation(f"rows must be whole episodes in order; run {run_id[row]} has a gap at row {row}")
    return Sequences(
        run_ids=run_ids,
        policy_versions=texts(column(heads, "policy_version")),
        controllers=_texts(heads, "controller"),
        sets=_texts(heads, "set"),
        families=_texts(heads, "family"),
        host_keys=numbers(column(heads, "host_key"), np.int64, "host_key"),
        starts=starts,
        lengths=lengths.astype(np.int64),
    )


def _texts(table: pa.Table, name: str) -> tuple[str, ...]:
    values = texts(column(table, name))
    if any(value is None for value in values):
        raise ContractViolation(f"{name}: absent is not allowed here")
    return tuple(value for value in values if value is not None)


def _final_states(table: pa.Table, last: NDArray[np.int64]) -> pa.Array:
    """[E]: the state after each episode's last step."""
    finals = column(table, "final_state")
    present = pc.is_valid(finals).to_numpy(zero_copy_only=False)
    expected = np.zeros(table.num_rows, dtype=np.bool_)
    expected[last] = True
    if (present != expected).any():
        raise ContractViolation("final_state must stand on the last row of each episode and nowhere else")
    return finals.take(pa.array(last))


def _steps(table: pa.Table, last: NDArray[np.int64], blueprints: tuple[str, ...], gamma: float) -> Steps:
    actions = actions_of(column(table, "action"), blueprints)
    propensities = propensities_of(column(table, "log_prob_behaviour"), actions)
    terminated = flags(column(table, "terminated"), "terminated")
    ends = terminated | flags(column(table, "truncated"), "truncated")
    if not ends[last].all() or ends.sum() != len(last):
        raise ContractViolation("terminated or truncated must stand on the last row of each episode and nowhere else")
    reward, returns = (_finite(table, name) for name in ("reward", "return_to_go"))
    return Steps(
        actions=torch.from_numpy(actions),
        log_prob_heads=torch.from_numpy(propensities.heads),
        log_prob_behaviour=torch.from_numpy(propensities.joint),
        rewards=torch.from_numpy(reward),
        discounts=torch.from_numpy(np.where(terminated, 0.0, gamma).astype(np.float32)),
        returns=torch.from_numpy(returns),
    )


def _finite(table: pa.Table, name: str) -> NDArray[Any]:
    values = numbers(column(table, name), np.float32, name)
    if not np.isfinite(values).all():
        raise ContractViolation(f"{name} must be finite in every row")
    return values
