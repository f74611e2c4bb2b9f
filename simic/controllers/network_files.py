"""Directories of sealed networks: ``weights.safetensors`` and ``card.json``, and nothing executable.

A directory appears complete or not at all. Loading is strict: sizes, names, shapes, types and versions must agree
before a parameter is allocated. The caller verifies the seal and passes the digests of the sealed files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, Self, TypeVar

from pydantic import Field, ValidationError, model_validator
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from simic.contracts.actions import BlueprintName
from simic.contracts.base import Contract, Count, Digest, Text
from simic.contracts.errors import ConfigError, ContractError, IntegrityError
from simic.contracts.faults import describe_faults
from simic.contracts.feature_ranges import FeatureRanges, NodeType
from simic.controllers.features import FEATURE_VERSION, feature_names
from simic.controllers.network import GraphNetwork
from simic.runtime.files import atomic_dir

__all__ = [
    "CARD_NAME",
    "WEIGHTS_NAME",
    "NetworkCard",
    "NetworkFiles",
    "check_weights",
    "inputs_of",
    "read_tensors",
]

WEIGHTS_NAME = "weights.safetensors"
CARD_NAME = "card.json"
MAX_WEIGHTS_BYTES = 256 * 1024 * 1024
MAX_CARD_BYTES = 1024 * 1024

Version = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]

Columns = Annotated[list[Annotated[str, Field(max_length=128)]], Field(max_length=4096)]

N = TypeVar("N", bound=Contract)


class NetworkCard(Contract, Generic[N]):
    """Architecture, inputs and origin of a network; no wall-clock time, so equal networks have equal cards."""

    schema_version: Literal[1] = 1
    architecture: Text
    network: N
    """Settings of the architecture, and for a policy the exploration share while acting."""
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
    """The snapshot it was trained on; null for an untrained network."""
    code_version: Text
    config_digest: Digest

    @model_validator(mode="after")
    def _ranges_fit_the_columns(self) -> Self:
        if self.feature_ranges is not None:
            found = {node: len(ranges) for node, ranges in self.feature_ranges.items()}
            if found != (expected := {node: len(columns) for node, columns in self.features.items()}):
                raise ValueError(f"feature_ranges: expected one per column, {expected}, found {found}")
        return self


def inputs_of(network: GraphNetwork, blueprints: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a card that follow from a network in its present state."""
    return {
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "feature_version": FEATURE_VERSION,
        "features": {node: list(names) for node, names in feature_names(blueprints).items()},
        "blueprints": list(blueprints),
        "normaliser_version": network.normaliser().version,
    }


C = TypeVar("C", bound=NetworkCard[Any])


class NetworkFiles(NamedTuple):
    """Reads and writes directories of one kind of network."""

    kind: str
    """Such as ``policy``, for messages."""
    architecture: str
    """The architecture that this code writes and reads; others are refused."""
    remedy: str
    """What to do about a directory of another version."""

    def write(self, directory: Path, network: nn.Module, card: Contract) -> None:
        """Write a new directory with the weights of ``network`` and its card.

        Raises:
            ContractError: if the directory exists.
        """
        if directory.exists():
            raise ContractError(f"{self.kind} {directory} exists already; it is never overwritten")
        state = {name: value.detach().cpu().contiguous() for name, value in sorted(network.state_dict().items())}
        with atomic_dir(directory) as staging:
            (staging / WEIGHTS_NAME).write_bytes(save(state))
            (staging / CARD_NAME).write_bytes(card.model_dump_json(indent=2).encode() + b"\n")

    def read(self, directory: Path, card: type[C], sealed: Mapping[str, str] | None) -> tuple[C, dict[str, Tensor]]:
        """Return card and weights of a directory.

        Args:
            directory: a directory that ``write`` made.
            card: the contract of its card.
            sealed: SHA-256 of each sealed file by name, as the verified seal lists them; None checks nothing.

        Raises:
            ConfigError: if a file is missing.
            ContractError: if card or weights are malformed, or of another version.
            IntegrityError: if the bytes read differ from the sealed ones.
        """
        card_bytes = self._bytes(directory / CARD_NAME, MAX_CARD_BYTES)
        weight_bytes = self._bytes(directory / WEIGHTS_NAME, MAX_WEIGHTS_BYTES)
        if sealed is not None:
            self._check_bytes(directory, {CARD_NAME: card_bytes, WEIGHTS_NAME: weight_bytes}, sealed)
        try:
            parsed = card.model_validate_json(card_bytes)
        except ValidationError as error:
            faults = describe_faults(error, "card")
            raise ContractError(f"{self.kind} card {directory / CARD_NAME} is malformed: {faults}") from error
        self._require_version(directory, parsed)
        return parsed, read_tensors(weight_bytes, f"weights of {self.kind} {directory}")

    def _require_version(self, directory: Path, card: NetworkCard[Any]) -> None:
        if card.architecture != self.architecture:
            raise ContractError(
                f"{self.kind} {directory} is of architecture {card.architecture}, this code makes "
                f"{self.architecture}; {self.remedy}"
            )
        if card.feature_version != FEATURE_VERSION:
            raise ContractError(
                f"{self.kind} {directory} reads features {card.feature_version}, this code makes {FEATURE_VERSION}; "
                f"{self.remedy}"
            )

    def _check_bytes(self, directory: Path, contents: Mapping[str, bytes], sealed: Mapping[str, str]) -> None:
        for name, content in contents.items():
            digest = hashlib.sha256(content).hexdigest()
            if digest != sealed.get(name):
                raise IntegrityError(
                    f"{self.kind} {directory}: {name} should have SHA-256 {sealed.get(name)}, as its seal says, found "
                    f"{digest}: it changed after the seal was checked, or was never sealed"
                )

    def _bytes(self, path: Path, limit: int) -> bytes:
        if not path.is_file():
            raise ConfigError(f"no {self.kind} here: {path} is missing")
        size = path.stat().st_size
        if size > limit:
            raise ContractError(f"{path} has {size} bytes, more than the limit of {limit}")
        return path.read_bytes()


def read_tensors(content: bytes, what: str) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file; raise ContractError if it is malformed or has a type of no tensor."""
    try:
        return load(content)
    except (SafetensorError, KeyError) as error:  # the key is a type that torch does not have
        raise ContractError(f"{what}: the file is malformed: {error}") from error


def check_weights(what: str, weights: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise ContractError unless names, shapes and types are ``expected``, and all numbers are finite."""
    if set(weights) != set(expected):
        raise ContractError(f"{what}: tensors differ by {sorted(set(weights) ^ set(expected))[:8]}")
    for name, value in weights.items():
        if value.shape != expected[name].shape or value.dtype != expected[name].dtype:
            raise ContractError(
                f"{what}: {name} should be {expected[name].dtype} {tuple(expected[name].shape)}, "
                f"found {value.dtype} {tuple(value.shape)}"
            )
        if not bool(value.isfinite().all()):
            raise ContractError(f"{what}: {name} is not finite")
