"""The action of a controller: one operation and the factors that belong to it."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from simic.contracts.base import IDENTIFIER, WHOLE, Contract

__all__ = [
    "ALPHA_CURVES",
    "ALPHA_SPEEDS",
    "ALPHA_TARGETS",
    "HEADS",
    "HEADS_PRESENT",
    "HEAD_SIZES",
    "OPS",
    "RELEVANT_HEADS",
    "TEMPOS",
    "Action",
    "ActionMasks",
    "AlphaCurve",
    "BehaviourLogProb",
    "BlueprintName",
    "Head",
    "Op",
]

BlueprintName = Annotated[str, Field(pattern=IDENTIFIER)]
"""The name of a blueprint's file; the set of known names is open (entry point ``simic.blueprints``). A type of its own,
by which the fast validator finds it, and not ``Identifier``."""


class Op(str, Enum):
    """The operation."""

    WAIT = "WAIT"
    """Change nothing this epoch."""
    GERMINATE = "GERMINATE"
    """Place a seed of a blueprint into an empty slot."""
    SET_ALPHA_TARGET = "SET_ALPHA_TARGET"
    """Let a held seed's alpha move to another target."""
    ADVANCE = "ADVANCE"
    """Begin to blend a seed that has trained in isolation."""
    FOSSILIZE = "FOSSILIZE"
    """Keep a held seed permanently."""
    PRUNE = "PRUNE"
    """Remove a live seed."""


class AlphaCurve(str, Enum):
    """How alpha moves over a ramp."""

    LINEAR = "LINEAR"
    """Constant change per epoch."""
    COSINE = "COSINE"
    """Half a cosine: slow at both ends."""
    SIGMOID = "SIGMOID"
    """Logistic curve: slower at both ends, faster in the middle."""


class Head(str, Enum):
    """The factors of an action, in the order in which they are sampled."""

    OP = "op"
    """The operation."""
    SLOT = "slot"
    """The slot that it addresses."""
    BLUEPRINT = "blueprint"
    """The blueprint to germinate."""
    ALPHA_TARGET = "alpha_target"
    """The value that alpha moves to."""
    ALPHA_SPEED = "alpha_speed"
    """The length of the ramp in epochs."""
    ALPHA_CURVE = "alpha_curve"
    """The shape of the ramp."""
    TEMPO = "tempo"
    """Largest number of epochs of training in isolation."""


OPS: tuple[Op, ...] = tuple(Op)
HEADS: tuple[Head, ...] = tuple(Head)
ALPHA_TARGETS: tuple[float, ...] = (0.5, 0.7, 1.0)
ALPHA_SPEEDS: tuple[int, ...] = (0, 3, 5, 8)
"""Epochs of a ramp; 0 changes alpha in one step."""
ALPHA_CURVES: tuple[AlphaCurve, ...] = tuple(AlphaCurve)
TEMPOS: tuple[int, ...] = (3, 5, 8)
"""Largest number of epochs that a seed trains in isolation; after it the host blends the seed automatically."""

HEAD_SIZES: dict[Head, int] = {
    Head.OP: len(OPS),
    Head.ALPHA_TARGET: len(ALPHA_TARGETS),
    Head.ALPHA_SPEED: len(ALPHA_SPEEDS),
    Head.ALPHA_CURVE: len(ALPHA_CURVES),
    Head.TEMPO: len(TEMPOS),
}
"""Number of choices of the heads whose choices are fixed; slots and blueprints are open sets."""

_RAMP = (Head.ALPHA_TARGET, Head.ALPHA_SPEED, Head.ALPHA_CURVE)
RELEVANT_HEADS: dict[Op, tuple[Head, ...]] = {
    Op.WAIT: (Head.OP,),
    Op.GERMINATE: (Head.OP, Head.SLOT, Head.BLUEPRINT, Head.TEMPO),
    Op.SET_ALPHA_TARGET: (Head.OP, Head.SLOT, *_RAMP),
    Op.ADVANCE: (Head.OP, Head.SLOT, *_RAMP),
    Op.FOSSILIZE: (Head.OP, Head.SLOT),
    Op.PRUNE: (Head.OP, Head.SLOT),
}
"""Factors that an operation uses. All others are null in an action and excluded from loss, entropy and KL."""


HEADS_PRESENT: dict[Op, tuple[bool, ...]] = {
    op: tuple(head in relevant for head in HEADS) for op, relevant in RELEVANT_HEADS.items()
}
"""The same as flags in the order of ``HEADS``."""


def _is_known_target(value: float) -> float:
    if value not in ALPHA_TARGETS:
        raise ValueError(f"alpha target must be one of {ALPHA_TARGETS}, found {value}")
    return value


AlphaTarget = Annotated[float, AfterValidator(_is_known_target)]


class Action(Contract):
    """One factored decision; a factor that does not belong to the operation is null."""

    op: Op
    """The operation."""
    slot: Annotated[int, Field(ge=0, le=1023)] | None = None
    """Index of the slot that the operation addresses; null for WAIT."""
    blueprint: BlueprintName | None = None
    """Blueprint of the new seed; GERMINATE only."""
    alpha_target: AlphaTarget | None = None
    """Value that alpha moves to: 0.5, 0.7 or 1; SET_ALPHA_TARGET and ADVANCE only."""
    alpha_speed: Annotated[Literal[0, 3, 5, 8], WHOLE] | None = None
    """Length of the ramp in epochs, 0 for one step; SET_ALPHA_TARGET and ADVANCE only."""
    alpha_curve: AlphaCurve | None = None
    """Shape of the ramp; SET_ALPHA_TARGET and ADVANCE only."""
    tempo: Annotated[Literal[3, 5, 8], WHOLE] | None = None
    """Largest number of epochs of training in isolation; GERMINATE only."""

    @model_validator(mode="after")
    def _only_relevant(self) -> Action:
        expected = HEADS_PRESENT[self.op]
        if self.present() != expected:
            names = sorted(h.value for h, is_, must in zip(HEADS, self.present(), expected, strict=True) if is_ != must)
            raise ValueError(f"action of {self.op.value}: factors {names} must be present exactly when relevant")
        return self

    def present(self) -> tuple[bool, ...]:
        """Whether each factor is present, in the order of ``HEADS``."""
        return (
            True,
            self.slot is not None,
            self.blueprint is not None,
            self.alpha_target is not None,
            self.alpha_speed is not None,
            self.alpha_curve is not None,
            self.tempo is not None,
        )


class ActionMasks(Contract):
    """Legal choices at the moment of the decision (the *available* masks)."""

    op: Annotated[list[bool], Field(min_length=len(OPS), max_length=len(OPS))]
    """Whether each operation was legal: WAIT, GERMINATE, SET_ALPHA_TARGET, ADVANCE, FOSSILIZE, PRUNE."""
    slot: Annotated[
        list[Annotated[list[bool], Field(max_length=1024)]], Field(min_length=len(OPS), max_length=len(OPS))
    ]
    """[operations][slots]: whether the operation may address the slot."""
    blueprint: Annotated[list[BlueprintName], Field(max_length=256)]
    """Blueprints that could be germinated."""


LogProb = Annotated[float, Field(le=1e-6, ge=-1e4, allow_inf_nan=False)]


class BehaviourLogProb(Contract):
    """Natural logarithms of the probabilities with which the acting controller chose each factor."""

    op: LogProb
    """Log-probability of the operation."""
    slot: LogProb | None = None
    """Log-probability of the slot; null if the action has none."""
    blueprint: LogProb | None = None
    """Log-probability of the blueprint; null if the action has none."""
    alpha_target: LogProb | None = None
    """Log-probability of the target of alpha; null if the action has none."""
    alpha_speed: LogProb | None = None
    """Log-probability of the length of the ramp; null if the action has none."""
    alpha_curve: LogProb | None = None
    """Log-probability of the shape of the ramp; null if the action has none."""
    tempo: LogProb | None = None
    """Log-probability of the tempo; null if the action has none."""
    joint: LogProb
    """Sum over the relevant factors."""

    @model_validator(mode="after")
    def _sums_up(self) -> BehaviourLogProb:
        total = sum([value for value in self.factors() if value is not None])
        if abs(total - self.joint) > 1e-3 * (1.0 + abs(total)):
            raise ValueError(f"joint log-probability {self.joint} is not the sum {total} over its factors")
        return self

    def factors(self) -> tuple[float | None, ...]:
        """Log-probabilities of the factors, in the order of ``HEADS``."""
        return (
            self.op,
            self.slot,
            self.blueprint,
            self.alpha_target,
            self.alpha_speed,
            self.alpha_curve,
            self.tempo,
        )
