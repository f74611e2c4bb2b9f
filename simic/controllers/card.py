"""What travels with a policy's weights, so that nobody has to guess how to use them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from simic.contracts.actions import BlueprintName
from simic.contracts.base import Contract, Count, Digest
from simic.contracts.config import NetworkConfig

__all__ = ["ARCHITECTURE", "PolicyCard"]

ARCHITECTURE = "hetero-sage-3"
"""Of the policies this code makes and reads; another name takes no weights from this one."""

Text = Annotated[str, Field(max_length=4096)]
Version = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
Columns = Annotated[list[Annotated[str, Field(max_length=128)]], Field(max_length=4096)]


class PolicyCard(Contract):
    """Architecture, inputs and origin of a policy; no wall-clock time, so equal policies have equal cards."""

    schema_version: Literal[1] = 1
    architecture: Text = ARCHITECTURE
    network: NetworkConfig
    """Width, rounds, and the exploration mixed in while acting."""
    parameters: Count
    """Trainable numbers."""
    feature_version: Version
    features: dict[Literal["context", "slot", "layer"], Columns]
    """Input columns per node type, in order."""
    blueprints: Annotated[list[BlueprintName], Field(min_length=1, max_length=256)]
    """The vocabulary, in order."""
    germinated: Annotated[list[BlueprintName], Field(max_length=256)] | None = None
    """Which of them germinated in what it learned from; null where nobody kept count."""
    normaliser_version: Version
    """Of the feature statistics stored with the weights."""
    set: Text
    """The world it was trained for."""
    snapshot_digest: Digest | None
    """The rows it learned from; null for an untrained one."""
    code_version: Text
    config_digest: Digest
