"""One episode as a person looks at it: an epoch a record, and what came of them.

Accuracies are shares in [0, 1], returns are points.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from simic.contracts.actions import Action, BlueprintName
from simic.contracts.base import Contract, Count, Digest, Finite, NonNegative, UnitInterval
from simic.contracts.field_report import GovernorEvent
from simic.contracts.lifecycle import SeedStage
from simic.contracts.receipts import Receipt
from simic.contracts.splits import Split
from simic.contracts.state import HostIdentity

__all__ = [
    "AttributionRecord",
    "AttributionReport",
    "EpisodeRecord",
    "EpochRecord",
    "SeedAttribution",
    "SlotRecord",
    "WatchReport",
]

Text = Annotated[str, Field(max_length=4096)]


class SlotRecord(Contract):
    """One slot as it stood when an epoch had been trained."""

    stage: SeedStage
    blueprint: BlueprintName | None
    alpha: UnitInterval
    contribution: Finite | None
    """Validation accuracy with the seed minus without it, smoothed; null where it was not measured."""
    contribution_error: NonNegative | None
    """Its standard error; likewise."""


class EpochRecord(Contract):
    """One decision, the epoch trained after it, and what was measured then."""

    epoch: Count
    """Epochs trained before the decision; the ``step`` of its field report."""
    action: Action
    slots: list[SlotRecord]
    validation_accuracy: UnitInterval
    """Of the network as it runs, blended seeds included."""
    validation_loss: NonNegative
    train_loss: NonNegative | None
    """Mean over the epoch; null where the governor undid it."""
    governor: GovernorEvent | None
    mitigation: list[Text]
    """What the governor did."""


class EpisodeRecord(Contract):
    """A finished episode."""

    host: HostIdentity
    controller: Text
    horizon: Count
    """Epochs it could have had."""
    start_accuracy: UnitInterval
    """Of the host at birth, on validation samples."""
    epochs: Annotated[list[EpochRecord], Field(min_length=1)]
    committed_accuracy: UnitInterval
    """Of the network to be kept, uncommitted seeds off, on validation samples."""
    test_accuracy: UnitInterval
    """Likewise, on test samples."""
    committed_parameters: Count
    """Parameters of fossilised seeds."""
    return_points: Finite
    """Undiscounted."""

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
    """Of the host; policies learn from ``train`` alone."""
    policy_digest: Digest | None
    episode: EpisodeRecord
    wait: EpisodeRecord
    over_wait: Finite
    """Return of the episode minus that of ``wait``, points."""


class SeedAttribution(Contract):
    """Share of one active seed in the accuracy of its host."""

    slot: Count
    blueprint: BlueprintName
    leave_one_out: Finite
    """Accuracy with all seeds minus accuracy without this one."""
    shapley: Finite
    """Mean gain over all orders in which the seeds can join (Shapley 1953)."""


class AttributionRecord(Contract):
    """Exact account of a host's validation accuracy, from every set of its active seeds.

    The Shapley values of all seeds add up to ``everything - nothing``.
    """

    nothing: UnitInterval
    """Accuracy with all seeds off."""
    everything: UnitInterval
    """Accuracy with all seeds on."""
    seeds: list[SeedAttribution]


class AttributionReport(WatchReport):
    """A watched episode with the attribution of its last state."""

    attribution: AttributionRecord
