"""Small ensembles of real hosts and hands to steer them, for tests of hosts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simic.contracts.actions import HEADS, OPS, RELEVANT_HEADS, Head, Op
from simic.contracts.batches import HEAD_INDEX, OP_INDEX, STAGE_INDEX, Masks
from simic.contracts.lifecycle import SeedStage
from simic.contracts.settings.run import WorldConfig
from simic.hosts.batched.host_batch import BatchedHosts
from simic.hosts.ensemble import Ensemble, StepOutcome
from simic.hosts.host_sets import identify
from simic.hosts.plugins import blueprint_names

__all__ = ["action", "ensemble", "prove", "random_actions", "stack", "stage_of", "state_digest", "step_with", "waits"]

GATE = blueprint_names().index("gate")
SIZES = {Head.ALPHA_TARGET: 3, Head.ALPHA_SPEED: 4, Head.ALPHA_CURVE: 3, Head.TEMPO: 3}


def ensemble(keys: Sequence[int], horizon: int = 20, world_set: str = "benchmark", **world: Any) -> Ensemble:
    """Real hosts."""
    return Ensemble(identify(world_set, keys), WorldConfig(set=world_set, horizon=horizon, **world))


def stack(grown: Ensemble) -> BatchedHosts:
    """The stacked hosts of an ensemble."""
    hosts = grown._hosts
    assert isinstance(hosts, BatchedHosts)
    return hosts


def waits(hosts: int) -> NDArray[np.int16]:
    """Everybody waits."""
    rows = np.full((hosts, len(HEADS)), -1, dtype=np.int16)
    rows[:, 0] = OP_INDEX[Op.WAIT]
    return rows


def action(op: Op, slot: int = 0, blueprint: int = GATE, **factors: int) -> NDArray[np.int16]:
    """One row; factors are indices by head name and default to 0, the alpha target to 1.0."""
    values = {"op": OP_INDEX[op], "slot": slot, "blueprint": blueprint, "alpha_target": 2, **factors}
    row = [values.get(head.value, 0) if head in RELEVANT_HEADS[op] else -1 for head in HEADS]
    return np.array(row, dtype=np.int16)


def step_with(grown: Ensemble, *rows: NDArray[np.int16]) -> StepOutcome:
    """The first hosts act, the others wait."""
    actions = waits(len(grown))
    for host, row in enumerate(rows):
        actions[host] = row
    return grown.step(actions)


def prove(grown: Ensemble, slot: int = 0) -> None:
    """Let the seeds in a slot look useful, so that they may be kept."""
    grown._slots["contribution"][:, slot] = 0.1


def stage_of(grown: Ensemble, host: int = 0, slot: int = 0) -> SeedStage:
    """Where a slot stands."""
    observed = grown.observe()
    code = int(observed.slots["stage"][observed.slot_ptr[host] + slot])
    return next(stage for stage, index in STAGE_INDEX.items() if index == code)


def random_actions(masks: Masks, uniforms: NDArray[np.float64], patience: float = 0.2) -> NDArray[np.int16]:
    """A legal action per host from uniforms [N, heads]; waits with probability ``patience``, prunes rarely."""
    hosts = len(masks.op)
    slots = masks.slot.reshape(hosts, -1, len(OPS))
    rows = np.full((hosts, len(HEADS)), -1, dtype=np.int16)

    def pick(legal: NDArray[np.bool_], u: float) -> int:
        return int(np.flatnonzero(legal)[int(u * legal.sum())])

    for host, u in enumerate(uniforms):
        legal = masks.op[host].copy()
        legal[OP_INDEX[Op.PRUNE]] &= u[HEAD_INDEX[Head.ALPHA_CURVE]] < 0.25
        if legal.sum() > 1 and u[HEAD_INDEX[Head.TEMPO]] >= patience:
            legal[OP_INDEX[Op.WAIT]] = False
        op = pick(legal, u[0])
        choices: dict[Head, NDArray[np.bool_]] = {
            Head.SLOT: slots[host, :, op],
            Head.BLUEPRINT: masks.blueprint[host],
            **{head: np.ones(size, dtype=bool) for head, size in SIZES.items()},
        }
        rows[host, 0] = op
        for head in RELEVANT_HEADS[OPS[op]][1:]:
            rows[host, HEAD_INDEX[head]] = pick(choices[head], u[HEAD_INDEX[head]])
    return rows


def _bytes_of(value: Any) -> bytes:
    return value.tobytes() if isinstance(value, np.ndarray) else value.numpy().tobytes()


def state_digest(grown: Ensemble) -> str:
    """SHA-256 over everything an ensemble carries from step to step."""
    parts = [stack(grown).weights.flat, stack(grown).momentum.flat, *stack(grown).seeds, *grown._readings]
    parts += [*grown._slots.columns.values(), grown._epoch, grown._finished, grown._germinations]
    return hashlib.sha256(b"".join(_bytes_of(part) for part in parts)).hexdigest()
