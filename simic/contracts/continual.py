"""Settings of a training that starts from a trained policy: what keeps it from forgetting what that policy knew."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simic.contracts.base import Contract
from simic.contracts.errors import ConfigError

__all__ = ["LoraConfig", "require_policy"]


class LoraConfig(Contract):
    """Low-rank adapters (Hu et al. 2022, section 4.1): the start policy's weights are frozen, small factors learn."""

    rank: Annotated[int, Field(ge=0, le=64)] = 0
    """Rank of the adapter of every linear layer; 0 adapts nothing and trains all weights. A training from nothing with
    another rank is refused, because random weights would be frozen."""
    alpha: Annotated[float, Field(gt=0.0, le=1024.0)] = 32.0
    """An adapter's output counts ``alpha / rank`` times."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Share of an adapter's inputs that an update leaves out, drawn anew each time; nothing else leaves any out."""


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
