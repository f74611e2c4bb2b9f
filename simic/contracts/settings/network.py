"""The architecture of the learned controller, apart from the other settings: loading a policy needs nothing else."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simic.contracts.base import Contract

__all__ = ["NetworkConfig"]


class NetworkConfig(Contract):
    """Architecture of the learned controller."""

    hidden: Annotated[int, Field(ge=8, le=1024)] = 48
    layers: Annotated[int, Field(ge=1, le=16)] = 2
    """Number of rounds of message passing."""
    exploration: Annotated[float, Field(ge=0.0, lt=0.5)] = 0.01
    """Share of the uniform distribution mixed into every head, while acting and learning."""
    first_epoch_penalty: Annotated[float, Field(ge=0.0, le=1000.0)] = 50.0
    """Subtracted from the logit of GERMINATE in a host that has not trained an epoch, until the policy has learned from
    branches of such decisions, which rounds collect. With 0 the policy alone decides from the start."""
