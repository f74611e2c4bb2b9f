"""The learner state that a training run resumes from: weights, moments, counters and pass counts. No pickle.

A policy's weights may be an average over rounds; the learner resumes from its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import Field, ValidationError
from safetensors.torch import save
from torch import Tensor

from simic.contracts.base import Contract, Count, Digest
from simic.contracts.errors import ContractError
from simic.contracts.faults import describe_faults
from simic.contracts.settings.continual import CurriculumState
from simic.controllers.network import PolicyNetwork
from simic.controllers.network_files import read_tensors
from simic.controllers.policy_files import LEARNER_NAMES
from simic.learning.history import put_moment
from simic.trust.canonical import canonical_bytes

__all__ = ["LearnerState", "SamplerState", "read_pass_counts", "read_state", "write_state"]

STATE_NAME, MOMENTS_NAME, _ = LEARNER_NAMES
_MAX_STATE_BYTES = 256 * 1024 * 1024
_MOMENTS = ("exp_avg", "exp_avg_sq")
_STEP = "step"
_WEIGHT = "weight"


class SamplerState(Contract):
    """State of a ``PassSampler``."""

    seed: Annotated[int, Field(ge=0, lt=2**63)]
    passes: Count
    counts: dict[str, Count]
    """Counted passes per run id, of this policy and of those that it started from."""


class LearnerState(Contract):
    """Counters of a training run; the optimiser's moments are stored beside it."""

    schema_version: Literal[1] = 1
    updates: Count
    """Optimiser steps so far."""
    rounds: Count
    """Rounds so far, the first training run included."""
    advantage_scale: Annotated[float, Field(gt=0)] | None
    """Advantage scale in points; null before the first counted pass."""
    snapshots: list[Digest]
    """Digests of all training snapshots, in order."""
    sampler: SamplerState
    curriculum: CurriculumState | None = None
    """Null without a curriculum."""


def write_state(directory: Path, state: LearnerState, network: PolicyNetwork, optimizer: torch.optim.Optimizer) -> None:
    """Write the learner state into a policy directory that is not sealed yet."""
    (directory / MOMENTS_NAME).write_bytes(save(_moments(network, optimizer)))
    (directory / STATE_NAME).write_bytes(canonical_bytes(state))


def read_state(directory: Path, network: PolicyNetwork, optimizer: torch.optim.Optimizer) -> LearnerState:
    """Restore weights and optimiser, and return the counters.

    Raises:
        ContractError: if a file is missing, malformed or does not fit the network.
    """
    state = _state_of(directory / STATE_NAME)
    moments = read_tensors(_read(directory / MOMENTS_NAME), f"learner state in {directory}")
    _restore(directory, moments, network, optimizer)
    return state


def read_pass_counts(directory: Path) -> dict[str, int]:
    """Return the counted passes per run id of a sealed policy; none if it was sealed without a learner state.

    Raises:
        ContractError: if the learner state is malformed.
    """
    path = directory / STATE_NAME
    return dict(_state_of(path).sampler.counts) if path.is_file() else {}


def _state_of(path: Path) -> LearnerState:
    try:
        return LearnerState.model_validate_json(_read(path))
    except ValidationError as error:
        faults = describe_faults(error, "state")
        raise ContractError(f"learner state in {path.parent} is malformed: {faults}") from error


def _moments(network: PolicyNetwork, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return ``<parameter>.weight`` of every parameter and ``<parameter>.<moment>`` of those ever stepped."""
    out: dict[str, Tensor] = {}
    for name, parameter in sorted(network.named_parameters()):
        out[f"{name}.{_WEIGHT}"] = parameter.detach().cpu().contiguous()
        for kind, value in optimizer.state.get(parameter, {}).items():
            out[f"{name}.{kind}"] = value.detach().cpu().contiguous()
    return out


def _restore(
    directory: Path, moments: dict[str, Tensor], network: PolicyNetwork, optimizer: torch.optim.Optimizer
) -> None:
    if wrong := sorted(name for name, value in moments.items() if not _is_real(value)):
        raise ContractError(f"learner state in {directory}: {wrong[:5]} are not finite numbers of type float32")
    left = set(moments)
    for name, parameter in network.named_parameters():
        weight = moments.get(f"{name}.{_WEIGHT}")
        if weight is None or weight.shape != parameter.shape:
            raise ContractError(f"learner state in {directory}: weights of {name} are missing or of another shape")
        parameter.data.copy_(weight)
        left.discard(f"{name}.{_WEIGHT}")
        keys = {kind: f"{name}.{kind}" for kind in (*_MOMENTS, _STEP)}
        present = left & set(keys.values())
        if not present:
            continue
        if present != set(keys.values()):
            raise ContractError(f"learner state in {directory}: moments of {name} are incomplete")
        if any(moments[keys[kind]].shape != parameter.shape for kind in _MOMENTS) or moments[keys[_STEP]].dim() != 0:
            raise ContractError(f"learner state in {directory}: moments of {name} have another shape")
        for kind, key in keys.items():
            put_moment(optimizer, parameter, kind, moments[key])
        left -= present
    if left:
        raise ContractError(f"learner state in {directory}: unknown moments {sorted(left)[:5]}")


def _is_real(value: Tensor) -> bool:
    return value.dtype == torch.float32 and bool(value.isfinite().all())


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise ContractError(f"{path} is missing: a continuation needs the learner state of its last round")
    if path.stat().st_size > _MAX_STATE_BYTES:
        raise ContractError(f"{path} is larger than {_MAX_STATE_BYTES} bytes")
    return path.read_bytes()
