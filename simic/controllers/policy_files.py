"""Policy directories: ``weights.safetensors`` and ``card.json``, and nothing executable.

A directory appears complete or not at all. Loading is strict: sizes, names, shapes, types and versions must agree
before a parameter is allocated. The caller verifies the seal and passes the digests of the sealed files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field, ValidationError, model_validator
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from simic.contracts.actions import BlueprintName
from simic.contracts.base import Contract, Count, Digest
from simic.contracts.errors import ConfigError, ContractError, IntegrityError
from simic.contracts.feature_ranges import FeatureRanges, NodeType
from simic.contracts.network_config import NetworkConfig
from simic.controllers.features import FEATURE_VERSION, feature_names
from simic.controllers.network import NetworkShape, PolicyNetwork
from simic.runtime.files import atomic_dir

__all__ = [
    "ARCHITECTURE",
    "CARD_NAME",
    "LEARNER_NAMES",
    "WEIGHTS_NAME",
    "LoadedPolicy",
    "PolicyCard",
    "describe",
    "load_policy",
    "save_policy",
]

ARCHITECTURE = "hetero-sage-4"
"""Architecture of the policies that this code writes and reads; others are refused."""

Text = Annotated[str, Field(max_length=4096)]
Version = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
Columns = Annotated[list[Annotated[str, Field(max_length=128)]], Field(max_length=4096)]


class PolicyCard(Contract):
    """Architecture, inputs and origin of a policy; no wall-clock time, so equal policies have equal cards."""

    schema_version: Literal[1] = 1
    architecture: Text = ARCHITECTURE
    network: NetworkConfig
    """Width, layers, and the exploration share while acting."""
    parameters: Count
    """Number of trainable parameters."""
    feature_version: Version
    features: dict[NodeType, Columns]
    """Input columns per node type, in order."""
    feature_ranges: FeatureRanges | None = None
    """Range of each column in the training data; null if unknown."""
    blueprints: Annotated[list[BlueprintName], Field(min_length=1, max_length=256)]
    """Blueprint names in index order."""
    germinated: Annotated[list[BlueprintName], Field(max_length=256)] | None = None
    """Blueprints that germinated in its training data; null if unknown."""
    normaliser_version: Version
    """Digest of the feature statistics stored with the weights."""
    set: Text
    """The host sets it was trained on, sorted and joined by ``+``."""
    snapshot_digest: Digest | None
    """The snapshot it was trained on; null for an untrained policy."""
    code_version: Text
    config_digest: Digest

    @model_validator(mode="after")
    def _ranges_fit_the_columns(self) -> PolicyCard:
        if self.feature_ranges is not None:
            found = {node: len(ranges) for node, ranges in self.feature_ranges.items()}
            if found != (expected := {node: len(columns) for node, columns in self.features.items()}):
                raise ValueError(f"feature_ranges: expected one per column, {expected}, found {found}")
        return self


WEIGHTS_NAME = "weights.safetensors"
CARD_NAME = "card.json"
LEARNER_NAMES = ("learner.json", "learner.safetensors", "ewc.safetensors")
"""Files that training may seal beside a policy for the trainings after it; acting reads none."""
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
    feature_ranges: FeatureRanges | None = None,
) -> PolicyCard:
    """Return the card of a network in its present state."""
    return PolicyCard(
        network=config,
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        feature_version=FEATURE_VERSION,
        features={node: list(names) for node, names in feature_names(network.shape.blueprints).items()},
        feature_ranges=feature_ranges,
        blueprints=list(network.shape.blueprints),
        germinated=None if germinated is None else list(germinated),
        normaliser_version=network.normaliser().version,
        set=set_name,
        snapshot_digest=snapshot_digest,
        code_version=code_version,
        config_digest=config_digest,
    )


def save_policy(directory: Path, network: PolicyNetwork, card: PolicyCard) -> None:
    """Write a new policy directory.

    Raises:
        ContractError: if the directory exists, or card and network disagree.
    """
    if directory.exists():
        raise ContractError(f"policy {directory} exists already; policies are never overwritten")
    _check_card(card, network)
    state = {name: value.detach().cpu().contiguous() for name, value in sorted(network.state_dict().items())}
    with atomic_dir(directory) as staging:
        (staging / WEIGHTS_NAME).write_bytes(save(state))
        (staging / CARD_NAME).write_bytes(card.model_dump_json(indent=2).encode() + b"\n")


def load_policy(directory: Path, sealed: Mapping[str, str] | None = None) -> LoadedPolicy:
    """Read and check a policy directory.

    Args:
        directory: a policy directory.
        sealed: SHA-256 of each sealed file by name, as the verified seal lists them.

    Raises:
        ConfigError: if a file is missing.
        ContractError: if card or weights do not match this code exactly.
        IntegrityError: if the bytes read differ from the sealed ones.
    """
    card_bytes = _read(directory / CARD_NAME, MAX_CARD_BYTES)
    weight_bytes = _read(directory / WEIGHTS_NAME, MAX_WEIGHTS_BYTES)
    if sealed is not None:
        _check_bytes(directory, {CARD_NAME: card_bytes, WEIGHTS_NAME: weight_bytes}, sealed)
    try:
        card = PolicyCard.model_validate_json(card_bytes)
    except ValidationError as error:
        raise ContractError(f"policy card {directory / CARD_NAME} is malformed: {error}") from error
    if card.architecture != ARCHITECTURE:
        raise ContractError(
            f"policy {directory} is of architecture {card.architecture}, this code makes {ARCHITECTURE}; "
            "begin with this code in a new SIMIC_HOME"
        )
    if card.feature_version != FEATURE_VERSION:
        raise ContractError(
            f"policy {directory} reads features {card.feature_version}, this code makes {FEATURE_VERSION}; "
            "begin with this code in a new SIMIC_HOME"
        )
    try:
        weights = load(weight_bytes)
    except SafetensorError as error:
        raise ContractError(f"weights of policy {directory} are malformed: {error}") from error
    shape = NetworkShape.of(card.network, tuple(card.blueprints))
    _check_weights(directory, weights, shape)
    network = PolicyNetwork(shape, seed=None)
    network.load_state_dict(weights, strict=True)
    _check_card(card, network)
    return LoadedPolicy(network.eval(), card)


def _check_bytes(directory: Path, contents: Mapping[str, bytes], sealed: Mapping[str, str]) -> None:
    for name, content in contents.items():
        found = hashlib.sha256(content).hexdigest()
        if found != sealed.get(name):
            raise IntegrityError(
                f"policy {directory}: {name} should have SHA-256 {sealed.get(name)}, as its seal says, found {found}: "
                "it changed after the seal was checked, or was never sealed"
            )


def _check_weights(directory: Path, weights: dict[str, Tensor], shape: NetworkShape) -> None:
    """Check names, shapes, types and finiteness against a network on the meta device."""
    with torch.device("meta"):
        expected = PolicyNetwork(shape, seed=None).state_dict()
    if set(weights) != set(expected):
        raise ContractError(f"policy {directory}: tensors differ by {sorted(set(weights) ^ set(expected))[:8]}")
    for name, value in weights.items():
        if value.shape != expected[name].shape or value.dtype != expected[name].dtype:
            raise ContractError(
                f"policy {directory}: {name} should be {expected[name].dtype} {tuple(expected[name].shape)}, "
                f"found {value.dtype} {tuple(value.shape)}"
            )
        if not bool(torch.isfinite(value).all()):
            raise ContractError(f"policy {directory}: {name} is not finite")


def _check_card(card: PolicyCard, network: PolicyNetwork) -> None:
    """Raise ContractError unless the card describes the network."""
    own = describe(
        network,
        card.network,
        set_name=card.set,
        snapshot_digest=card.snapshot_digest,
        code_version=card.code_version,
        config_digest=card.config_digest,
        germinated=card.germinated,
        feature_ranges=card.feature_ranges,
    )
    if own != card or NetworkShape.of(card.network, network.shape.blueprints) != network.shape:
        fields = [name for name in PolicyCard.model_fields if getattr(own, name) != getattr(card, name)]
        raise ContractError(f"policy card and network disagree about {fields or ['network']}")


def _read(path: Path, limit: int) -> bytes:
    if not path.is_file():
        raise ConfigError(f"no policy here: {path} is missing")
    size = path.stat().st_size
    if size > limit:
        raise ContractError(f"{path} has {size} bytes, more than the limit of {limit}")
    return path.read_bytes()
