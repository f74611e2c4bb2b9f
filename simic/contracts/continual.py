"""Settings of a training that starts from a trained policy: what keeps it from forgetting what that policy knew."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simic.contracts.base import Contract, UnitInterval
from simic.contracts.errors import ConfigError

__all__ = ["EwcConfig", "LoraConfig", "require_policy"]


class LoraConfig(Contract):
    """Low-rank adapters (Hu et al. 2022, section 4.1): the start policy's weights are frozen, small factors learn."""

    rank: Annotated[int, Field(ge=0, le=64)] = 0
    """Rank of the adapter of every linear layer; 0 adapts nothing and trains all weights. A training from nothing with
    another rank is refused, because random weights would be frozen."""
    alpha: Annotated[float, Field(gt=0.0, le=1024.0)] = 32.0
    """An adapter's output counts ``alpha / rank`` times."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Share of an adapter's inputs that an update leaves out, drawn anew each time; nothing else leaves any out."""


class EwcConfig(Contract):
    """Elastic weight consolidation (Kirkpatrick et al. 2017): weights on which the start policy's decisions depend
    hardly move."""

    weight: Annotated[float, Field(ge=0.0, le=1e9)] = 0.0
    """Weight of the penalty, lambda; 0 turns it off. A training with another weight seals the Fisher information with
    its policy, for the next one. A training from nothing has no penalty."""
    samples: Annotated[int, Field(ge=1, le=1_000_000)] = 200
    """Largest number of states over which the Fisher information of a policy is the mean."""
    decay: UnitInterval = 0.9
    """Share of the Fisher information of earlier policies in that of a new one; 0 remembers the last one only."""


def require_policy(lora: LoraConfig) -> None:
    """Refuse settings that need a trained policy to start from, for a training that starts from nothing.

    Raises:
        ConfigError: if adapters are on.
    """
    if lora.rank:
        raise ConfigError(
            f"train.lora.rank is {lora.rank}, but this training starts from nothing, so adapters would learn on random "
            "weights that are frozen: start from a policy (`simic train --start`, or a run with a champion), or set "
            "train.lora.rank to 0"
        )
