"""Directories of policies, and their cards; ``network_files`` says how they are written and read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from simic.contracts.base import Text
from simic.contracts.errors import ContractError
from simic.contracts.feature_ranges import FeatureRanges
from simic.contracts.settings.network import NetworkConfig
from simic.controllers.network import NetworkShape, PolicyNetwork
from simic.controllers.network_files import (
    CARD_NAME,
    WEIGHTS_NAME,
    NetworkCard,
    NetworkFiles,
    check_weights,
    inputs_of,
)
from simic.controllers.on_cpu import on_cpu

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


class PolicyCard(NetworkCard[NetworkConfig]):
    """Architecture, inputs and origin of a policy; no wall-clock time, so equal policies have equal cards."""

    architecture: Text = ARCHITECTURE


LEARNER_NAMES = ("learner.json", "learner.safetensors", "ewc.safetensors")
"""Files that training may seal beside a policy for the trainings after it; acting reads none."""
_FILES = NetworkFiles("policy", ARCHITECTURE, "begin with this code in a new SIMIC_HOME")


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
        **inputs_of(network, network.shape.blueprints),
        network=config,
        feature_ranges=feature_ranges,
        germinated=None if germinated is None else list(germinated),
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
    _check_card(card, network)
    _FILES.write(directory, network, card)


@on_cpu
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
    card, weights = _FILES.read(directory, PolicyCard, sealed)
    shape = NetworkShape.of(card.network, tuple(card.blueprints))
    with torch.device("meta"):
        expected = PolicyNetwork(shape, seed=None).state_dict()
    check_weights(f"policy {directory}", weights, expected)
    network = PolicyNetwork(shape, seed=None)
    network.load_state_dict(weights, strict=True)
    _check_card(card, network)
    return LoadedPolicy(network.eval(), card)


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
