"""What a policy knows of the trainings before it, for elastic weight consolidation: a sealed file. No pickle.

The weights that a later training is held to are the policy's own. Rounds of one run are held to the policy that the run
started from, so the file of a round also has what held it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from safetensors.torch import save
from torch import Tensor

from simic.contracts.errors import ContractError
from simic.contracts.settings.continual import EwcConfig
from simic.controllers.network import PolicyNetwork
from simic.controllers.network_files import read_tensors
from simic.controllers.policy_files import LEARNER_NAMES
from simic.learning.continual.ewc import Anchor, consolidate, deciding_parameters, fisher_diagonal
from simic.learning.history import History
from simic.replay.dataset import GraphDataset

__all__ = ["Memory", "keep_anchor", "memory_of", "read_memory", "start_anchor", "write_memory"]

_LOG = logging.getLogger(__name__)

_NAME = LEARNER_NAMES[2]
_MAX_BYTES = 1024 * 1024 * 1024
_OWN, _HELD_FISHER, _HELD_WEIGHTS = "fisher", "held/fisher", "held/weights"


class Memory(NamedTuple):
    """The Fisher information of a policy, and what held its training."""

    fisher: dict[str, Tensor]
    """By parameter; consolidated with that of earlier policies."""
    held: Anchor | None
    """None after a training from nothing."""


def start_anchor(
    path: Path, network: PolicyNetwork, store: GraphDataset, config: EwcConfig, seed: int, *, is_continuation: bool
) -> Anchor | None:
    """Return what a training that starts from the policy at ``path`` is held to.

    A round of a run (``is_continuation``) is held to what held the round before; None if nothing did. A policy whose
    training sealed no Fisher information gets it from the states at hand, which may be others than those that it
    learned from.

    Raises:
        ContractError: if the file is malformed, or a round's policy has none.
    """
    weights = deciding_parameters(network)
    memory = read_memory(path, weights)
    if memory is not None:
        return memory.held if is_continuation else Anchor(weights, memory.fisher)
    if is_continuation:
        raise ContractError(
            f"{path / _NAME} is missing: expected it of a round with train.ewc.weight {config.weight}; begin the run "
            "again, or set train.ewc.weight to 0"
        )
    own = fisher_diagonal(network, store, config.samples, seed)
    _LOG.info(
        "policy %s has no Fisher information of its own training; it is measured on %d states of this snapshot",
        path.name[:12],
        own.samples,
    )
    return Anchor(weights, own.diagonal)


def keep_anchor(anchor: Anchor, history: History) -> Anchor:
    """Make the anchor part of the following checkpoints, and return it, or that of the checkpoint."""
    kept = history.keep(
        "ewc",
        lambda: {f"{part}/{name}": value for part, own in anchor._asdict().items() for name, value in own.items()},
    )
    return Anchor(*({name: kept[f"{part}/{name}"] for name in anchor.weights} for part in Anchor._fields))


def memory_of(
    network: PolicyNetwork, store: GraphDataset, config: EwcConfig, held: Anchor | None, seed: int
) -> tuple[Memory, int]:
    """Return the memory of a trained policy, and the number of states over which it was measured."""
    own = fisher_diagonal(network, store, config.samples, seed)
    fisher = own.diagonal if held is None else consolidate(own.diagonal, held.fisher, config.decay)
    return Memory(fisher, held), own.samples


def write_memory(directory: Path, memory: Memory) -> None:
    """Write the file into a policy directory that is not sealed yet."""
    parts = {_OWN: memory.fisher}
    if memory.held is not None:
        parts |= {_HELD_FISHER: memory.held.fisher, _HELD_WEIGHTS: memory.held.weights}
    tensors = {f"{part}/{name}": value.contiguous() for part, own in parts.items() for name, value in own.items()}
    (directory / _NAME).write_bytes(save(tensors))


def read_memory(directory: Path, weights: Mapping[str, Tensor]) -> Memory | None:
    """Read the file of a policy whose deciding parameters are ``weights``; None if the policy has none.

    Raises:
        ContractError: if it is malformed or does not fit the parameters.
    """
    path = directory / _NAME
    if not path.is_file():
        return None
    if path.stat().st_size > _MAX_BYTES:
        raise ContractError(f"{path} is larger than {_MAX_BYTES} bytes")
    tensors = read_tensors(path.read_bytes(), str(path))
    is_held = any(name.startswith("held/") for name in tensors)
    parts = {part: _part(path, tensors, part, weights) for part in _parts(is_held=is_held)}
    expected = len(parts) * len(weights)
    if len(tensors) != expected:
        raise ContractError(f"{path} should have {expected} tensors, found {len(tensors)}")
    held = Anchor(weights=parts[_HELD_WEIGHTS], fisher=parts[_HELD_FISHER]) if is_held else None
    return Memory(parts[_OWN], held)


def _parts(*, is_held: bool) -> tuple[str, ...]:
    return (_OWN, _HELD_FISHER, _HELD_WEIGHTS) if is_held else (_OWN,)


def _part(path: Path, tensors: Mapping[str, Tensor], part: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    values = {}
    for name, weight in weights.items():
        value = tensors.get(f"{part}/{name}")
        if value is None or value.shape != weight.shape or value.dtype != weight.dtype:
            raise ContractError(f"{path}: {part}/{name} is missing, or not {weight.dtype} {tuple(weight.shape)}")
        is_fisher = part != _HELD_WEIGHTS
        if not bool(value.isfinite().all()) or (is_fisher and bool((value < 0).any())):
            raise ContractError(f"{path}: {part}/{name} has values that are not finite{' or below 0' * is_fisher}")
        values[name] = value
    return values
