"""Karn: a network that proposes which blueprint suits a slot of a host, and its sealed directory.

It reads the same graphs as a policy by an encoder of the same form, and gives logits over blueprints for every slot. A
second encoder predicts the return of every blueprint; only its training reads it.

Shapes: N graphs, S slots, H hidden width, K blueprints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from simic.contracts.base import Text
from simic.contracts.errors import ContractError
from simic.contracts.feature_ranges import FeatureRanges
from simic.contracts.names import KARN
from simic.contracts.settings.karn import KarnNetworkConfig
from simic.controllers.features import feature_names
from simic.controllers.graph import GraphBatch
from simic.controllers.network import (
    RETURN_POINTS,
    FeatureNoise,
    GraphEncoder,
    GraphNetwork,
    NetworkShape,
    input_normalisers,
    mlp_head,
    relations_of,
)
from simic.controllers.network_files import NetworkCard, NetworkFiles, check_weights, inputs_of
from simic.controllers.on_cpu import on_cpu
from simic.numerics.ragged import row_owners

__all__ = ["ConsultedKarn", "KarnCard", "KarnNetwork", "LoadedKarn", "describe_karn", "load_karn", "save_karn"]

ARCHITECTURE = "karn-sage-1"
"""Architecture of the networks that this code writes and reads; others are refused."""
_FILES = NetworkFiles(KARN, ARCHITECTURE, "train another with `simic karn train`")


class KarnNetwork(GraphNetwork):
    """Computes logits and predicted returns of every blueprint for every slot; deterministic on the CPU."""

    def __init__(self, config: KarnNetworkConfig, blueprints: tuple[str, ...], seed: int | None = 0) -> None:
        """Initialise parameters from a generator of their own; with ``seed`` None they stay uninitialised."""
        super().__init__()
        self.config, self.blueprints = config, blueprints
        names = feature_names(blueprints)
        hidden, small = config.hidden, NetworkShape(config.hidden, config.layers, blueprints).value_hidden
        with torch.random.fork_rng(devices=[]):
            self.normalise = input_normalisers(names)
            self.policy_encoder = GraphEncoder(names, hidden, config.layers)
            self.blueprint_head = mlp_head(2 * hidden, hidden, len(blueprints))
            self.value_encoder = GraphEncoder(names, small, config.layers)
            self.return_head = mlp_head(2 * small, small, len(blueprints))
        self.register_buffer("value_mean", torch.zeros(()))
        self.register_buffer("value_scale", torch.tensor(RETURN_POINTS))
        if seed is not None:
            self.initialise(seed, (self.blueprint_head, self.return_head))

    def forward(self, batch: GraphBatch, noise: FeatureNoise | None = None) -> Tensor:
        """Return unmasked logits [S, K]; with ``noise``, all present features are perturbed."""
        x = self.inputs(batch)
        if noise is not None:
            x = {node: noise.added_to(features) for node, features in x.items()}
        logits: Tensor = self.blueprint_head(_places(batch, self.policy_encoder(x, relations_of(batch))))
        return logits

    def returns(self, batch: GraphBatch) -> Tensor:
        """Return predicted returns to go [S, K] in points, if the blueprint germinates in the slot."""
        predicted: Tensor = self.return_head(
            _places(batch, self.value_encoder(self.inputs(batch), relations_of(batch)))
        )
        return self.value_mean + self.value_scale * predicted

    def policy_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that the logits depend on."""
        return [*self.policy_encoder.parameters(), *self.blueprint_head.parameters()]

    def value_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that the predicted returns depend on."""
        return [*self.value_encoder.parameters(), *self.return_head.parameters()]


def _places(batch: GraphBatch, states: dict[str, Tensor]) -> Tensor:
    """Return [S, 2 H]: the state of every slot beside that of its graph's context."""
    owners = row_owners(batch.slot_ptr)
    return torch.cat([states["slot"], states["context"].index_select(0, owners)], dim=1)


class KarnCard(NetworkCard[KarnNetworkConfig]):
    """Architecture, inputs and origin of a Karn."""

    architecture: Text = ARCHITECTURE
    controller: Literal["karn"] = "karn"


class LoadedKarn(NamedTuple):
    """A network in evaluation mode and its card."""

    network: KarnNetwork
    card: KarnCard


class ConsultedKarn(NamedTuple):
    """The Karn that a policy consults."""

    loaded: LoadedKarn
    digest: str
    """Digest of its seal."""


def describe_karn(
    network: KarnNetwork,
    *,
    set_name: str,
    snapshot_digest: str | None,
    code_version: str,
    config_digest: str,
    germinated: Sequence[str] | None,
    feature_ranges: FeatureRanges | None,
) -> KarnCard:
    """Return the card of a network in its present state."""
    return KarnCard(
        **inputs_of(network, network.blueprints),
        network=network.config,
        feature_ranges=feature_ranges,
        germinated=None if germinated is None else list(germinated),
        set=set_name,
        snapshot_digest=snapshot_digest,
        code_version=code_version,
        config_digest=config_digest,
    )


def save_karn(directory: Path, network: KarnNetwork, card: KarnCard) -> None:
    """Write a new directory.

    Raises:
        ContractError: if the directory exists, or card and network disagree.
    """
    _check_card(card, network)
    _FILES.write(directory, network, card)


@on_cpu
def load_karn(directory: Path, sealed: Mapping[str, str]) -> LoadedKarn:
    """Read and check a directory; ``sealed`` has the SHA-256 of each file by name, from the verified seal.

    Raises:
        ConfigError: if a file is missing.
        ContractError: if card or weights do not match this code exactly.
        IntegrityError: if the bytes read differ from the sealed ones.
    """
    card, weights = _FILES.read(directory, KarnCard, sealed)
    names = tuple(card.blueprints)
    with torch.device("meta"):
        expected = KarnNetwork(card.network, names, seed=None).state_dict()
    check_weights(f"{KARN} {directory}", weights, expected)
    network = KarnNetwork(card.network, names, seed=None)
    network.load_state_dict(weights, strict=True)
    _check_card(card, network)
    return LoadedKarn(network.eval(), card)


def _check_card(card: KarnCard, network: KarnNetwork) -> None:
    """Raise ContractError unless the card describes the network."""
    follows = inputs_of(network, network.blueprints) | {"network": network.config}
    if wrong := [name for name, value in follows.items() if getattr(card, name) != value]:
        raise ContractError(f"{KARN}'s card and network disagree about {wrong}")
