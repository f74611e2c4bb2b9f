"""The life of a seed: stages, gates and the one table of transitions."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from simic.contracts.actions import Op

__all__ = ["ALIVE_STAGES", "TRANSITIONS", "Gate", "SeedStage", "Transition", "Trigger"]


class SeedStage(str, Enum):
    """Where a slot's seed stands."""

    DORMANT = "DORMANT"
    """The slot is empty and can take a seed."""
    GERMINATED = "GERMINATED"
    """A seed was placed; it changes nothing yet and waits for its gradient probe."""
    TRAINING = "TRAINING"
    """The seed learns from its own blended loss while the host's output is unchanged."""
    BLENDING = "BLENDING"
    """Alpha moves towards its target; the host feels the seed."""
    HOLDING = "HOLDING"
    """Alpha rests at its target; the contribution is measured."""
    FOSSILIZED = "FOSSILIZED"
    """Kept for good: part of the host from here on."""
    PRUNED = "PRUNED"
    """Switched off; its parameters no longer count."""
    EMBARGOED = "EMBARGOED"
    """The slot rests after a prune, so that noise cannot make it thrash."""
    RESETTING = "RESETTING"
    """Parameters and optimiser state return to those of a slot never used."""


class Gate(str, Enum):
    """What must hold before a transition."""

    G0 = "G0"
    """Sanity: known blueprint, shape kept, identity at birth to 1e-5."""
    G1 = "G1"
    """Gradient health: a probe gives a finite gradient that is not zero."""
    G2 = "G2"
    """Stability: dwell served, finite, gradient health at least its bound."""
    G3 = "G3"
    """Interface: alpha has reached its target."""
    G4 = "G4"
    """System impact: contribution measured, fresh and at least its bound."""
    G5 = "G5"
    """Reset: slot and optimiser state equal those of a slot never used."""


class Trigger(str, Enum):
    """Who may cause a transition."""

    ACTION = "ACTION"
    EPOCH = "EPOCH"
    """The end of an epoch, once the gate and the dwell allow it."""
    FADE = "FADE"
    """A prune by ramp: alpha moves to 0 before the seed goes."""
    FADED = "FADED"
    """The end of the epoch in which a fading seed's alpha has reached 0."""
    GOVERNOR = "GOVERNOR"


class Transition(NamedTuple):
    """One legal move; everything absent from the table is illegal."""

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
"""TRAINING -> BLENDING at an epoch's end happens when the seed's tempo has run out."""

ALIVE_STAGES: frozenset[SeedStage] = frozenset({_S.GERMINATED, _S.TRAINING, _S.BLENDING, _S.HOLDING})
"""Stages in which a seed trains, pays rent and can be pruned."""
