"""One episode for display: a record per epoch, and the result.

Accuracies are shares in [0, 1], returns are points.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from simic.contracts.actions import Action, BlueprintName
from simic.contracts.base import Contract, Count, Digest, Finite, NonNegative, Text, UnitInterval
from simic.contracts.feature_ranges import OutOfRange
from simic.contracts.field_report import GovernorEvent
from simic.contracts.lifecycle import SeedStage
from simic.contracts.results.receipts import Receipt
from simic.contracts.splits import Split
from simic.contracts.state import HostIdentity

__all__ = [
    "AttributionRecord",
    "AttributionReport",
    "EpisodeRecord",
    "EpochRecord",
    "PairAttribution",
    "SeedAttribution",
    "SlotRecord",
    "WatchReport",
]


class SlotRecord(Contract):
    """One slot after an epoch of training."""

    stage: SeedStage
    blueprint: BlueprintName | None
    alpha: UnitInterval
    contribution: Finite | None
    """Validation accuracy with the seed minus without it, smoothed; null if not measured."""
    contribution_error: NonNegative | None
    """Standard error of the contribution; null if not measured."""


class EpochRecord(Contract):
    """One decision, the epoch trained after it, and the measurements."""

    epoch: Count
    """Epochs trained before the decision; the ``step`` of its field report."""
    action: Action
    slots: list[SlotRecord]
    validation_accuracy: UnitInterval
    """Accuracy of the running network, blended seeds included."""
    validation_loss: NonNegative
    train_loss: NonNegative | None
    """Mean training loss of the epoch; null if the governor undid it."""
    governor: GovernorEvent | None
    mitigation: list[Text]
    """Actions that the governor took."""


class EpisodeRecord(Contract):
    """A finished episode."""

    host: HostIdentity
    controller: Text
    horizon: Count
    """Largest possible number of epochs."""
    start_accuracy: UnitInterval
    """Validation accuracy of the host before growth."""
    epochs: Annotated[list[EpochRecord], Field(min_length=1)]
    committed_accuracy: UnitInterval
    """Validation accuracy of the network that is kept, without uncommitted seeds."""
    test_accuracy: UnitInterval | None
    """Test accuracy of the network that is kept; null if there were no test samples."""
    committed_parameters: Count
    """Number of parameters of fossilised seeds."""
    return_points: Finite
    """Undiscounted return in points."""

    @model_validator(mode="after")
    def _is_one_story(self) -> EpisodeRecord:
        if [record.epoch for record in self.epochs] != list(range(len(self.epochs))):
            raise ValueError("epochs must be numbered from 0 without a gap")
        if len(self.epochs) > self.horizon:
            raise ValueError(f"{len(self.epochs)} epochs are more than the horizon {self.horizon}")
        if any(record.governor is not None for record in self.epochs[:-1]):
            raise ValueError("a governor event ends its episode in the same epoch")
        return self

    @property
    def slots(self) -> int:
        """Number of slots of the host."""
        return len(self.epochs[0].slots)

    @property
    def accuracy(self) -> list[float]:
        """Validation accuracy of the running network after 0, 1, ... epochs."""
        return [self.start_accuracy, *(record.validation_accuracy for record in self.epochs)]


class WatchReport(Receipt):
    """One host grown under a controller, and the same host never grown."""

    stage: Literal["watch"] = "watch"
    split: Split
    """Data split of the host; policies learn from ``train`` alone."""
    policy_digest: Digest | None
    episode: EpisodeRecord
    wait: EpisodeRecord
    over_wait: Finite
    """Return of the episode minus that of ``wait``, points."""
    out_of_range: list[OutOfRange] | None
    """What of the host was unlike the training data of the policy or of the Karn that it consults: each measurement as
    it was in the first such epoch, in the slot or layer where it lay furthest outside. Null for a controller without a
    policy, and for a policy that does not say what its data were."""


class SeedAttribution(Contract):
    """Contribution of one active seed to the accuracy of its host."""

    slot: Count
    blueprint: BlueprintName
    leave_one_out: Finite
    """Accuracy with all seeds minus accuracy without this one."""
    shapley: Finite
    """Mean gain over all orders in which the seeds can be added (Shapley 1953)."""


class PairAttribution(Contract):
    """What two active seeds do to each other."""

    slots: tuple[Count, Count]
    interaction: Finite
    """Gain of both together minus their gains alone, with all other seeds off: positive if they help each other."""


class AttributionRecord(Contract):
    """Exact attribution of a host's validation accuracy, computed from every subset of its active seeds.

    The Shapley values of all seeds add up to ``everything - nothing``.
    """

    nothing: UnitInterval
    """Accuracy with all seeds off."""
    everything: UnitInterval
    """Accuracy with all seeds on."""
    seeds: list[SeedAttribution]
    pairs: list[PairAttribution] = Field(default_factory=list)
    """Every pair of active seeds."""


class AttributionReport(WatchReport):
    """A watched episode with the attribution of its last state."""

    attribution: AttributionRecord
