"""One decision of one controller on one host, and what came of it."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from simic.contracts.actions import (
    HEADS,
    HEADS_PRESENT,
    OPS,
    RELEVANT_HEADS,
    Action,
    ActionMasks,
    BehaviourLogProb,
    BlueprintName,
    Head,
)
from simic.contracts.base import Contract, Count, NonNegative, UnitInterval, UtcDatetime
from simic.contracts.state import HostIdentity, SystemState

__all__ = ["FieldReport", "GovernorEvent", "GovernorKind", "Outcome", "StepMetrics"]

Id = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
"""The first 32 hex characters of a SHA-256 over what identifies the thing."""


_INDEX = {op: index for index, op in enumerate(OPS)}


class Outcome(str, Enum):
    """How the observation window ended."""

    SUCCESS = "SUCCESS"
    NEUTRAL = "NEUTRAL"
    REGRESSION = "REGRESSION"
    ABORTED = "ABORTED"
    """The governor ended the episode in this step."""


class GovernorKind(str, Enum):
    """What the governor saw."""

    NON_FINITE = "NON_FINITE"
    DIVERGENCE = "DIVERGENCE"
    COLLAPSE = "COLLAPSE"
    """The host had learnt something and now gives every sample the same class."""


class GovernorEvent(Contract):
    """A panic: the host was rolled back and the episode ended."""

    kind: GovernorKind
    message: Annotated[str, Field(max_length=256)]


class StepMetrics(Contract):
    """What the observation window measured; rewards are computed from these and never read by a controller."""

    validation_accuracy_before: UnitInterval
    validation_accuracy_after: UnitInterval
    """On the last step: of the network to be kept, uncommitted seeds off."""
    validation_loss_before: NonNegative
    validation_loss_after: NonNegative
    rent_parameters: Count
    """Parameters of seeds alive or fossilised during the window."""
    committed_parameters: Count
    """Parameters of fossilised seeds after the window."""
    test_accuracy: UnitInterval | None = None
    """On the last step only; reported, never learned from."""


class FieldReport(Contract):
    """The unit of experience. Key: ``report_id``; order within an episode: ``step``."""

    schema_version: Literal[1] = 1
    report_id: Id
    run_id: Id
    """The episode."""
    command_id: Id
    """The decision, as the executor saw it."""
    step: Annotated[int, Field(ge=0, lt=100_000)]
    controller: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]
    policy_version: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Digest of the acting policy; null for a controller without weights."""
    host: HostIdentity
    state: SystemState
    available: ActionMasks
    action: Action
    relevant: Annotated[list[Head], Field(min_length=1, max_length=len(HEADS))]
    log_prob_behaviour: BehaviourLogProb
    outcome: Outcome
    metrics: StepMetrics
    terminated: bool
    truncated: bool
    governor: GovernorEvent | None = None
    seed_id: Annotated[str, Field(max_length=96)] | None = None
    """The seed the action addressed: ``<run_id>/<slot>/<germination number>``."""
    blueprint_id: BlueprintName | None = None
    """The blueprint of that seed."""
    observation_window_epochs: Annotated[int, Field(ge=1, le=1000)] = 1
    mitigation: Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=16, default_factory=list)]
    """What the governor did."""
    issued_at: UtcDatetime
    final_state: SystemState | None = None
    """The state after the window; on the last report of an episode only."""

    @model_validator(mode="after")
    def _tells_one_story(self) -> FieldReport:
        relevant = RELEVANT_HEADS[self.action.op]
        if tuple(self.relevant) != relevant:
            raise ValueError(f"relevant heads of {self.action.op.value} are {[h.value for h in relevant]}")
        measured = tuple([value is not None for value in self.log_prob_behaviour.factors()])
        if measured != HEADS_PRESENT[self.action.op]:
            raise ValueError("log_prob_behaviour must cover exactly the relevant heads")
        if (self.terminated or self.truncated) != (self.final_state is not None):
            raise ValueError("final_state belongs on the last report of an episode and nowhere else")
        if self.governor is not None and not self.terminated:
            raise ValueError("a governor event ends its episode in the same step")
        self._check_legality()
        return self

    def _check_legality(self) -> None:
        op = _INDEX[self.action.op]
        slots = len(self.state.slots)
        if set(map(len, self.available.slot)) != {slots}:
            raise ValueError(f"slot masks do not have the state's {slots} slots")
        if not self.available.op[op]:
            raise ValueError(f"operation {self.action.op.value} was not available")
        slot = self.action.slot
        if slot is not None and (slot >= slots or not self.available.slot[op][slot]):
            raise ValueError(f"slot {slot} was not available for {self.action.op.value}")
        blueprint = self.action.blueprint
        if blueprint is not None and blueprint not in self.available.blueprint:
            raise ValueError(f"blueprint {blueprint} was not available")
