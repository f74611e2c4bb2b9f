"""Policies on disk: ``weights.safetensors`` and ``card.json``, and nothing executable.

A directory appears whole or not at all. Loading is strict: sizes, names, shapes, types and versions must all agree
before a parameter is allocated. Whether the bytes are the ones that were sealed is the caller's question.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from simic.contracts.config import NetworkConfig
from simic.contracts.errors import ConfigError, ContractViolation
from simic.controllers.card import ARCHITECTURE, PolicyCard
from simic.controllers.features import FEATURE_VERSION, feature_names
from simic.controllers.network import NetworkShape, PolicyNetwork

__all__ = ["CARD_NAME", "WEIGHTS_NAME", "LoadedPolicy", "describe", "load_policy", "save_policy"]

WEIGHTS_NAME = "weights.safetensors"
CARD_NAME = "card.json"
MAX_WEIGHTS_BYTES = 256 * 1024 * 1024
MAX_CARD_BYTES = 1024 * 1024


class LoadedPolicy(NamedTuple):
    """A network in evaluation mode and its card."""

    network: PolicyNetwork
    card: PolicyCard


def describe(
    network: PolicyNetwork,
    config: NetworkConfig,
    *,
    set_name: str,
    snapshot_digest: str | None,
    code_version: str,
    config_digest: str,
    germinated: Sequence[str] | None = None,
) -> PolicyCard:
    """The card of a network as it is now."""
    return PolicyCard(
        network=config,
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        feature_version=FEATURE_VERSION,
        features={node: list(names) for node, names in feature_names(network.shape.blueprints).items()},
        blueprints=list(network.shape.blueprints),
        germinated=None if germinated is None else list(germinated),
        normaliser_version=network.normaliser().version,
        set=set_name,
        snapshot_digest=snapshot_digest,
        code_version=code_version,
        config_digest=config_digest,
    )


def save_policy(directory: Path, network: PolicyNetwork, card: PolicyCard) -> None:
    """Write a new policy directory; an existing one is never touched."""
    if directory.exists():
        raise ContractViolation(f"policy {directory} exists already; policies are never overwritten")
    _check_card(card, network)
    directory.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        state = {name: value.detach().cpu().contiguous() for name, value in sorted(network.state_dict().items())}
        _write(staging / WEIGHTS_NAME, save(state))
        _write(staging / CARD_NAME, card.model_dump_json(indent=2).encode() + b"\n")
        staging.chmod(0o755)
        staging.rename(directory)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    _sync_directory(directory.parent)


def load_policy(directory: Path) -> LoadedPolicy:
    """Read a policy; anything that does not fit exactly raises ContractViolation."""
    card_bytes = _read(directory / CARD_NAME, MAX_CARD_BYTES)
    weight_bytes = _read(directory / WEIGHTS_NAME, MAX_WEIGHTS_BYTES)
    try:
        card = PolicyCard.model_validate_json(card_bytes)
    except ValidationError as error:
        raise ContractViolation(f"policy card {directory / CARD_NAME} is malformed: {error}") from error
    if card.architecture != ARCHITECTURE:
        raise ContractViolation(
            f"policy {directory} is of architecture {card.architecture}, this code makes {ARCHITECTURE}; "
            "begin with this code in a new SIMIC_HOME"
        )
    if card.feature_version != FEATURE_VERSION:
        raise ContractViolation(
            f"policy {directory} reads features {card.feature_version}, this code makes {FEATURE_VERSION}; "
            "begin with this code in a new SIMIC_HOME"
        )
    try:
        weights = load(weight_bytes)
    except SafetensorError as error:
        raise ContractViolation(f"weights of policy {directory} are malformed: {error}") from error
    shape = NetworkShape.of(card.network, tuple(card.blueprints))
    _check_weights(directory, weights, shape)
    network = PolicyNetwork(shape, seed=None)
    network.load_state_dict(weights, strict=True)
    _check_card(card, network)
    return LoadedPolicy(network.eval(), card)


def _check_weights(directory: Path, weights: dict[str, Tensor], shape: NetworkShape) -> None:
    """Names, shapes, types and finiteness, against a network that holds no memory."""
    with torch.device("meta"):
        expected = PolicyNetwork(shape, seed=None).state_dict()
    if set(weights) != set(expected):
        raise ContractViolation(f"policy {directory}: tensors differ by {sorted(set(weights) ^ set(expected))[:8]}")
    for name, value in weights.items():
        if value.shape != expected[name].shape or value.dtype != expected[name].dtype:
            raise ContractViolation(
                f"policy {directory}: {name} should be {expected[name].dtype} {tuple(expected[name].shape)}, "
                f"found {value.dtype} {tuple(value.shape)}"
            )
        if not bool(torch.isfinite(value).all()):
            raise ContractViolation(f"policy {directory}: {name} is not finite")


def _check_card(card: PolicyCard, network: PolicyNetwork) -> None:
    """The card must say of the network what the network says of itself."""
    own = describe(
        network,
        card.network,
        set_name=card.set,
        snapshot_digest=card.snapshot_digest,
        code_version=card.code_version,
        config_digest=card.config_digest,
        germinated=card.germinated,
    )
    if own != card or NetworkShape.of(card.network, network.shape.blueprints) != network.shape:
        fields = [name for name in PolicyCard.model_fields if getattr(own, name) != getattr(card, name)]
        raise ContractViolation(f"policy card and network disagree about {fields or ['network']}")


def _read(path: Path, limit: int) -> bytes:
    if not path.is_file():
        raise ConfigError(f"no policy here: {path} is missing")
    size = path.stat().st_size
    if size > limit:
        raise ContractViolation(f"{path} has {size} bytes, more than the limit of {limit}")
    return path.read_bytes()


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
