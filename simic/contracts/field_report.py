"""The field report: one decision of one controller on one host, with its outcome."""

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
from simic.contracts.base import WHOLE, Contract, Count, NonNegative, UnitInterval, UtcDatetime
from simic.contracts.state import HostIdentity, SystemState

__all__ = ["FieldReport", "GovernorEvent", "GovernorKind", "Outcome", "StepMetrics"]

Id = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
"""The first 32 hex characters of a SHA-256 over the identifying fields."""


_INDEX = {op: index for index, op in enumerate(OPS)}


class Outcome(str, Enum):
    """How the observation window ended."""

    SUCCESS = "SUCCESS"
    """Validation accuracy rose by 0.005 or more."""
    NEUTRAL = "NEUTRAL"
    """Validation accuracy changed by less than 0.005."""
    REGRESSION = "REGRESSION"
    """Validation accuracy fell by 0.005 or more."""
    ABORTED = "ABORTED"
    """The governor ended the episode in this step."""


class GovernorKind(str, Enum):
    """The failure that the governor detected."""

    NON_FINITE = "NON_FINITE"
    """A loss or a parameter is not finite."""
    DIVERGENCE = "DIVERGENCE"
    """The training loss exceeds the bound of the governor."""
    COLLAPSE = "COLLAPSE"
    """Accuracy fell, and the host now predicts the same class for every sample."""


class GovernorEvent(Contract):
    """An intervention of the governor: the host was rolled back and the episode ended."""

    kind: GovernorKind
    """The failure that was detected."""
    message: Annotated[str, Field(max_length=256)]
    """The measured value and its bound."""


class StepMetrics(Contract):
    """Measurements of the observation window, from which rewards are computed; controllers never read them."""

    validation_accuracy_before: UnitInterval
    """Validation accuracy in the state before the window, to 1e-6."""
    validation_accuracy_after: UnitInterval
    """Validation accuracy after the window; on the last step, that of the network that is kept, without uncommitted
    seeds."""
    validation_loss_before: NonNegative
    """Validation loss in the state before the window, to a relative 1e-6."""
    validation_loss_after: NonNegative
    """Validation loss after the window."""
    rent_parameters: Count
    """Parameters of seeds alive or fossilised during the window; over one epoch the state's `seed_parameters`, plus
    germinated ones, minus at most those pruned. A germinated seed has at most 10,000,000, and so has each seed of a
    longer window."""
    committed_parameters: Count
    """Parameters of fossilised seeds after the window: those of the state and of a seed that FOSSILIZE addressed."""
    test_accuracy: UnitInterval | None = None
    """Test accuracy of the network that is kept, on the last step only; no learner uses it."""


class FieldReport(Contract):
    """The unit of experience. Key: ``report_id``; order within an episode: ``step``.

    Ingestion also refuses reports whose fields contradict each other, see ``simic.contracts.consistency``.
    """

    schema_version: Annotated[Literal[1], WHOLE] = 1
    """Version of this contract."""
    report_id: Id
    """Id of the report."""
    run_id: Id
    """Id of the episode."""
    command_id: Id
    """Id of the decision, as the executor received it."""
    step: Annotated[int, Field(ge=0, lt=100_000)]
    """Number of the decision in its episode, from 0; at most the epoch of the state, because a step takes one epoch or
    more."""
    controller: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]
    """Name of the acting controller."""
    policy_version: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Digest of the acting policy; null for a controller without weights."""
    host: HostIdentity
    state: SystemState
    available: ActionMasks
    action: Action
    relevant: Annotated[list[Head], Field(min_length=1, max_length=len(HEADS))]
    """Factors that the operation uses, in the order of sampling."""
    log_prob_behaviour: BehaviourLogProb
    outcome: Outcome
    """How the observation window ended."""
    metrics: StepMetrics
    terminated: bool
    """The episode ended in this step, at the latest at its horizon."""
    truncated: bool
    """The episode was cut off after this step; never together with `terminated`."""
    governor: GovernorEvent | None = None
    seed_id: Annotated[str, Field(max_length=96)] | None = None
    """The seed that the action addressed: ``<run_id>/<slot>/<germination number>``; null for WAIT only."""
    blueprint_id: BlueprintName | None = None
    """The blueprint of that seed; null for WAIT only."""
    observation_window_epochs: Annotated[int, Field(ge=1, le=1000)] = 1
    """Epochs between the decision and the measurements."""
    mitigation: Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=16, default_factory=list)]
    """Actions that the governor took; empty without a governor event."""
    branch_of: Id | None = None
    """Id of the parent, if the episode is a branch: it repeats the parent's host and decisions up to `branch_step`."""
    branch_step: Annotated[int, Field(ge=0, lt=100_000)] | None = None
    """Step of the decision that was enumerated instead of chosen by the controller; null exactly where `branch_of` is,
    at most the last step of the episode."""
    trial_id: Id | None = None
    """Id of the trial or comparison, if the episode is judging experience: curation leaves it out of every snapshot."""
    judgement: Annotated[int, Field(ge=1, le=2**53)] | None = None
    """Number of the judgement that the trial belongs to; null in a comparison, and where `trial_id` is null."""
    issued_at: UtcDatetime
    """Time at which the report was made."""
    final_state: SystemState | None = None
    """The state after the window, on the last report of an episode only. Its epoch is that of the state plus the
    window."""

    @model_validator(mode="after")
    def _tells_one_story(self) -> FieldReport:
        relevant = RELEVANT_HEADS[self.action.op]
        if tuple(self.relevant) != relevant:
            expected = ", ".join(head.value for head in relevant)
            found = ", ".join(head.value for head in self.relevant)
            raise ValueError(f"relevant: expected {expected}, the factors of {self.action.op.value}, found {found}")
        measured = tuple([value is not None for value in self.log_prob_behaviour.factors()])
        if measured != HEADS_PRESENT[self.action.op]:
            expected = ", ".join(head.value for head in relevant)
            found = ", ".join(head.value for head, is_number in zip(HEADS, measured, strict=True) if is_number)
            raise ValueError(
                f"log_prob_behaviour: expected numbers for exactly the relevant factors {expected}, found {found}"
            )
        self._check_end()
        if self.governor is not None and not self.terminated:
            raise ValueError("a governor event ends its episode in the same step")
        if (self.branch_of is None) != (self.branch_step is None):
            raise ValueError("branch_of and branch_step belong together: a branch has both, another episode neither")
        if self.branch_of == self.run_id:
            raise ValueError("branch_of must name another episode than run_id")
        if self.judgement is not None and self.trial_id is None:
            raise ValueError("judgement is the number of a trial's judgement: expected a trial_id, found null")
        self._check_legality()
        return self

    def _check_end(self) -> None:
        if (self.terminated or self.truncated) == (self.final_state is not None):
            return
        if self.final_state is None:
            end = "terminated" if self.terminated else "truncated"
            raise ValueError(f"final_state: expected the state after the window, because {end} is true, found null")
        raise ValueError(
            "final_state: expected null, because neither terminated nor truncated is true, found a state; it belongs "
            "on the last report of an episode"
        )

    def _check_legality(self) -> None:
        op = _INDEX[self.action.op]
        slots = len(self.state.slots)
        if set(map(len, self.available.slot)) != {slots}:
            raise ValueError(
                f"available.slot: expected {slots} slots of each operation, as in state.slots, found others"
            )
        if not self.available.op[op]:
            raise ValueError(f"available.op: expected true for {self.action.op.value}, which action takes, found false")
        slot = self.action.slot
        if slot is not None and (slot >= slots or not self.available.slot[op][slot]):
            expected = f"a slot that available.slot allows for {self.action.op.value}"
            raise ValueError(f"action.slot: expected {expected}, found {slot}")
        blueprint = self.action.blueprint
        if blueprint is not None and blueprint not in self.available.blueprint:
            raise ValueError(f"action.blueprint: expected one of available.blueprint, found {blueprint}")
