"""Settings of the lifecycle of seeds and of the governor: the rules of the world that every host obeys."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simic.contracts.base import Contract, UnitInterval

__all__ = ["GovernorConfig", "LifecycleConfig"]


class LifecycleConfig(Contract):
    """Gates and least stays of the lifecycle, and the running contribution of seeds.

    Batched hosts, module hosts and Growers obey the same ones. Each setting is part of the identity of an episode.
    """

    contribution_weight: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """Weight of the newest measurement in the running contribution of a seed and in that of its error; 1 takes the
    newest alone. A single measurement has a standard error near one point."""
    birth_tolerance: Annotated[float, Field(gt=0.0, le=1.0)] = 1e-5
    """Gate G0: largest change of any value of a layer's output by a new seed."""
    min_gradient_health: UnitInterval = 0.7
    """Gate G2: least share of an epoch's steps with a finite gradient that is not zero, before a seed may blend."""
    min_contribution: Annotated[float, Field(ge=-1.0, le=1.0)] = 0.0
    """Gate G4: least running contribution with which a seed may be fossilised, in validation accuracy."""
    max_contribution_age: Annotated[int, Field(ge=0, le=1000)] = 1
    """Gate G4: largest number of epochs since the contribution was measured."""
    training_epochs: Annotated[int, Field(ge=1, le=1000)] = 1
    """Gate G2: least number of epochs that a seed trains before it may blend."""
    holding_epochs: Annotated[int, Field(ge=0, le=1000)] = 1
    """Least number of epochs that a seed is held before it may be fossilised or get another alpha target."""
    embargo_epochs: Annotated[int, Field(ge=1, le=1000)] = 2
    """Number of epochs that a slot rests after a prune."""
    automatic_ramp_epochs: Annotated[int, Field(ge=0, le=1000)] = 3
    """Epochs of the linear ramp to alpha 1 that starts by itself when a seed's tempo is used up; 0 blends at once."""


class GovernorConfig(Contract):
    """Bounds of the governor, which ends the episode of a host that has failed."""

    divergence_factor: Annotated[float, Field(ge=1.0, le=1e6)] = 3.0
    """A mean training loss above this many times the larger of the validation loss at birth and that of a uniform guess
    is divergence."""
    collapsed_share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.999
    """Share of validation samples in one predicted class from which the output counts as constant."""
    lost_accuracy: UnitInterval = 0.1
    """Fall of validation accuracy below its best from which a constant output is a collapse, not a slow start."""
