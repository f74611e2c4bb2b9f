"""The lifecycle of a seed: stages, gates and the table of transitions."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from simic.contracts.actions import Op

__all__ = ["ALIVE_STAGES", "TRANSITIONS", "Gate", "SeedStage", "Transition", "Trigger"]


class SeedStage(str, Enum):
    """Stage of a slot and its seed."""

    DORMANT = "DORMANT"
    """The slot is empty and can take a seed."""
    GERMINATED = "GERMINATED"
    """A seed was placed; it has no effect yet and waits for its gradient probe."""
    TRAINING = "TRAINING"
    """The seed learns from its own blended loss while the host's output is unchanged."""
    BLENDING = "BLENDING"
    """Alpha moves towards its target; the seed affects the host."""
    HOLDING = "HOLDING"
    """Alpha is at its target; the contribution is measured."""
    FOSSILIZED = "FOSSILIZED"
    """Kept permanently as part of the host."""
    PRUNED = "PRUNED"
    """Switched off; its parameters no longer count."""
    EMBARGOED = "EMBARGOED"
    """The slot rests after a prune, so that noise does not cause repeated pruning and germination."""
    RESETTING = "RESETTING"
    """Parameters and optimiser state return to those of an unused slot."""


class Gate(str, Enum):
    """Condition of a transition."""

    G0 = "G0"
    """Sanity: known blueprint, shape kept, identity at birth within its tolerance."""
    G1 = "G1"
    """Gradient health: a probe gives a finite gradient that is not zero."""
    G2 = "G2"
    """Stability: dwell served, finite, gradient health at least its bound."""
    G3 = "G3"
    """Interface: alpha has reached its target."""
    G4 = "G4"
    """System impact: contribution measured, fresh and at least its bound."""
    G5 = "G5"
    """Reset: slot and optimiser state equal those of an unused slot."""


class Trigger(str, Enum):
    """Cause of a transition."""

    ACTION = "ACTION"
    EPOCH = "EPOCH"
    """End of an epoch, if gate and dwell allow it."""
    FADE = "FADE"
    """Prune by ramp: alpha falls to 0 before the seed is removed."""
    FADED = "FADED"
    """End of the epoch in which alpha of a fading seed has reached 0."""
    GOVERNOR = "GOVERNOR"


class Transition(NamedTuple):
    """One legal transition; all others are illegal."""

    source: SeedStage
    target: SeedStage
    trigger: Trigger
    op: Op | None
    gate: Gate | None


_S = SeedStage
TRANSITIONS: tuple[Transition, ...] = (
    Transition(_S.DORMANT, _S.GERMINATED, Trigger.ACTION, Op.GERMINATE, Gate.G0),
    Transition(_S.GERMINATED, _S.TRAINING, Trigger.EPOCH, None, Gate.G1),
    Transition(_S.TRAINING, _S.BLENDING, Trigger.ACTION, Op.ADVANCE, Gate.G2),
    Transition(_S.TRAINING, _S.BLENDING, Trigger.EPOCH, None, Gate.G2),
    Transition(_S.BLENDING, _S.HOLDING, Trigger.EPOCH, None, Gate.G3),
    Transition(_S.HOLDING, _S.BLENDING, Trigger.ACTION, Op.SET_ALPHA_TARGET, None),
    Transition(_S.HOLDING, _S.FOSSILIZED, Trigger.ACTION, Op.FOSSILIZE, Gate.G4),
    *(
        Transition(source, _S.PRUNED, trigger, op, None)
        for source in (_S.GERMINATED, _S.TRAINING, _S.BLENDING, _S.HOLDING)
        for trigger, op in ((Trigger.ACTION, Op.PRUNE), (Trigger.GOVERNOR, None))
    ),
    Transition(_S.HOLDING, _S.BLENDING, Trigger.FADE, None, None),
    Transition(_S.BLENDING, _S.BLENDING, Trigger.FADE, None, None),
    Transition(_S.BLENDING, _S.PRUNED, Trigger.FADED, None, Gate.G3),
    Transition(_S.PRUNED, _S.EMBARGOED, Trigger.EPOCH, None, None),
    Transition(_S.EMBARGOED, _S.RESETTING, Trigger.EPOCH, None, None),
    Transition(_S.RESETTING, _S.DORMANT, Trigger.EPOCH, None, Gate.G5),
)
"""TRAINING -> BLENDING at the end of an epoch happens when the seed's tempo is used up."""

ALIVE_STAGES: frozenset[SeedStage] = frozenset({_S.GERMINATED, _S.TRAINING, _S.BLENDING, _S.HOLDING})
"""Stages in which a seed trains, pays rent and can be pruned."""
