"""Conservative mode: a pure state, and what an update may do in it. Nothing is changed, so nothing is to be restored.

Rates, batch and deadline of an update are computed from the settings and the mode, never from their last values. So
entering twice is entering once, and leaving gives back every value exactly.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from simic.contracts.settings.safety import ConservativeConfig, Trigger

__all__ = ["LEAST_BATCH", "Allowance", "Mode", "allowance", "step"]

LEAST_BATCH = 8
"""Smallest batch; ``train.batch_sequences`` has the same bound."""


class Mode(NamedTuple):
    """Whether training is conservative."""

    is_on: bool = False
    healthy: int = 0
    """Updates without a trigger since the last one; 0 while the mode is off."""


class Allowance(NamedTuple):
    """What the next update may do."""

    lr_factor: float
    """Factor on all learning rates."""
    batch_sequences: int
    """Largest number of sequences that are processed at once; a power of two in [8, 256]."""
    is_prioritised: bool
    """Whether priorities decide what is drawn."""
    timeout_factor: float
    """Factor on the deadline of an update."""


def step(mode: Mode, triggers: Collection[Trigger], config: ConservativeConfig) -> Mode:
    """Return the mode after an update: on while a configured trigger comes again within ``config.healthy_updates``."""
    if not set(config.triggers).isdisjoint(triggers):
        return Mode(is_on=True)
    if not mode.is_on or mode.healthy + 1 >= config.healthy_updates:
        return Mode()
    return mode._replace(healthy=mode.healthy + 1)


def allowance(mode: Mode, config: ConservativeConfig, batch_sequences: int) -> Allowance:
    """Return what an update may do; ``batch_sequences``, a power of two in [8, 256], is the bound without the mode."""
    if not mode.is_on:
        return Allowance(1.0, batch_sequences, is_prioritised=True, timeout_factor=1.0)
    bound = max(LEAST_BATCH, batch_sequences // 2)
    return Allowance(config.lr_factor, bound, is_prioritised=False, timeout_factor=config.timeout_factor)
