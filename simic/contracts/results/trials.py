"""Trials: episodes of several controllers on the same hosts, and what was chosen by them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from simic.contracts.base import Contract, Count, Digest, Finite, Text
from simic.contracts.results.receipts import Receipt
from simic.contracts.settings.safety import StopCause

__all__ = [
    "ControllerTrial",
    "Estimate",
    "FamilyTrial",
    "RentTrial",
    "SeedChoice",
    "SeedTrial",
    "StaticTrial",
    "StoppedSeed",
    "TrialReport",
]


class Estimate(Contract):
    """A paired mean difference with its interval, which contains the mean.

    The interval is a percentile bootstrap's over all hosts of one policy, if they are 30 or more. It is Student's for
    fewer, within a family, and over several training seeds.
    """

    mean: Finite
    lower: Finite
    upper: Finite
    confidence: Annotated[float, Field(gt=0.5, lt=1.0)]
    n: Annotated[int, Field(ge=2, le=2**53)]
    """Number of pairs."""

    @model_validator(mode="after")
    def _check_order(self) -> Estimate:
        if not self.lower <= self.mean <= self.upper:
            raise ValueError(f"expected lower <= mean <= upper, found {self.lower}, {self.mean}, {self.upper}")
        return self


class FamilyTrial(Contract):
    """Results of one controller on a group of hosts."""

    episodes: Count
    mean_return: Finite
    over_wait: Estimate | None
    """Difference to ``wait``, paired by host key; null for ``wait`` itself and for a single host."""
    test_accuracy: Finite
    validation_accuracy: Finite
    committed_parameters: Finite
    test_over_wait: Estimate | None = None
    """Difference of test accuracies to ``wait``, as a share, paired by host key; null as ``over_wait``."""
    host_parameters: Finite | None = None
    """Mean number of trainable parameters of the hosts without seeds; null in reports of earlier versions."""
    extra_compute: Finite | None = None
    """Mean of: parameters of seeds, summed over the epochs in which they are alive or fossilised, over the host's own
    parameters times the horizon; of an arm that searches over all episodes grown on the host, each after the first of
    which adds 1. Probes and decisions are not in it. Null in reports of earlier versions."""
    decisions: Finite | None = None
    """Mean number of decisions for a host: one per epoch, until the episode ends; null in reports of earlier versions.
    """
    decision_multiply_adds: Finite | None = None
    """Mean number of multiply-adds of a decision in the linear layers of a policy, and of a Karn that it consults, for
    the graph of the host; 0 for a controller without a policy, null in reports of earlier versions."""
    controller_compute: Finite | None = None
    """Mean of: multiply-adds of all decisions, over those of the host's training: 3 for each of its parameters,
    training samples and epochs. An upper bound for hosts with convolutions, which use parameters more often. Null in
    reports of earlier versions."""
    probe_compute: Finite | None = None
    """Mean of: what the observations take beside the validation of the host, over the multiply-adds of its training: a
    forward pass of the host on the validation samples for each contribution of a seed, a forward and a backward pass on
    one batch for each germinated seed. Null in reports of earlier versions."""


class RentTrial(Contract):
    """Results of one controller at another rent; no host grows again for it."""

    factor: Annotated[float, Field(ge=0.0)]
    """Factor on the rent per parameter."""
    mean_return: Finite
    over_wait: Estimate | None
    """Difference to ``wait``, which pays no rent, paired by host key; null for ``wait`` itself."""


class StaticTrial(Contract):
    """The networks that a controller ended with, trained from the start without growing."""

    same: Literal["epochs", "compute"]
    """Quantity in which static networks equal the episodes: the number of epochs, or parameters summed over epochs."""
    mean_epochs: Finite | None
    """Epochs trained; with equal compute it differs between hosts. Null in a proof whose trainings all failed."""
    mean_return: Finite
    test_accuracy: Finite
    governor_events: Count
    return_difference: Estimate
    """Controller minus static network, paired by host key, in points."""
    test_difference: Estimate
    """Difference of test accuracies, paired by host key, as a share; no rent is in it."""


class ControllerTrial(FamilyTrial):
    """Results of one controller on all held-out hosts."""

    controller: Text
    illegal_actions: Count
    """Number of decisions outside the masks; the host waited instead."""
    governor_events: Count
    by_family: dict[str, FamilyTrial]
    """Results on the hosts of each family."""
    returns: list[Finite]
    """Return per host, in the order of the report's host keys."""
    test_accuracies: list[Finite]
    validation_accuracies: list[Finite] = Field(default_factory=list)
    """Validation accuracy of the committed network per host; empty in reports of earlier versions."""
    validation_losses: list[Finite] = Field(default_factory=list)
    """Validation loss of the committed network per host; empty in reports of earlier versions."""
    measured_steps: Count | None = None
    """Number of steps after which the contribution of a seed was measured; null in reports of earlier versions."""
    hacking_steps: Count | None = None
    """Number of measured steps that are flagged as reward hacking, as in ``rewards`` of the catalogue; null in reports
    of earlier versions."""
    ransomware_steps: Count | None = None
    """Number of measured steps that are flagged as ransomware, as in ``rewards`` of the catalogue; null in reports
    of earlier versions."""
    rents: list[Finite] = Field(default_factory=list)
    """Points of rent in each return; empty in reports of earlier versions."""
    by_rent: list[RentTrial] = Field(default_factory=list)
    """Results at other rents, if they were asked for."""
    static: list[StaticTrial] = Field(default_factory=list)
    """Comparisons with the final networks trained from the start, if they were asked for; none of ``wait`` and of an
    arm that searches."""
    scored_by: Literal["validation", "test"] = "validation"
    """Accuracy that the returns end with. ``test`` is for the arms ``simulate`` and ``hindsight``, which take the best
    of several episodes by the return with the validation accuracy: their returns, and those of ``wait`` in the
    differences to it, end with the test accuracy, which no choice inflated. Their validation accuracies are inflated.
    """
    test_returns: list[Finite] = Field(default_factory=list)
    """Return with the test accuracy in place of the validation accuracy per host; empty in reports of earlier versions.
    """
    by_test: Estimate | None = None
    """Difference of ``test_returns`` to those of ``wait``; null for ``wait`` and in reports of earlier versions."""
    episodes_grown: Finite = 1.0
    """Mean number of episodes grown on a host, of which one was taken."""
    share_of_hindsight: Estimate | None = None
    """Gain of ``test_returns`` over those of ``blind``, or of ``wait`` if ``blind`` takes no part, as a share of the
    same gain of ``hindsight``; null if it takes no part or its gain may be 0."""


class TrialReport(Receipt):
    """Results of every controller on the same hosts."""

    stage: Literal["trials"] = "trials"
    set: Text
    host_keys: list[Count]
    families: list[Text]
    """Family of each host, in the order of ``host_keys``."""
    controllers: list[ControllerTrial]
    plans_digest: Digest | None
    """Digest of the plan book that ``heuristic``, ``blind``, ``symptom``, ``oracle`` and ``expert`` follow."""
    without_book: list[Text] = Field(default_factory=list)
    """Consequences of a missing plan book or tree: controllers left out, and ``heuristic`` on its default rules."""
    policy_digest: Digest | None = None
    """Digest of the policy in row ``candidate``; null if no candidate took part."""
    book_differences: list[Text] = Field(default_factory=list)
    """Settings in which these episodes differ from those that the plan book was searched on."""


class SeedTrial(Contract):
    """The policy of one training seed, tried on validation hosts."""

    training_seed: Count
    policy_digest: Digest
    controller: Text
    """Row of the policy in the trials."""
    mean_return: Finite
    over_wait: Estimate
    """Difference to never growing, paired by host key."""


class StoppedSeed(Contract):
    """A training seed whose training was hopeless and ended early, so that its policy was not tried."""

    training_seed: Count
    policy_digest: Digest
    cause: StopCause


class SeedChoice(Receipt):
    """The best of several trainings that differ in their seed alone; ``seed`` is that of the run."""

    stage: Literal["choose"] = "choose"
    policy_digest: Digest
    """The policy with the greatest mean difference; the first of several with the same one."""
    training_seed: Count
    """Training seed of the chosen policy."""
    set: Text
    """Set of the validation hosts."""
    hosts: Count
    """Number of validation hosts, the same for all policies."""
    snapshot_digest: Digest
    start_digest: Digest | None
    """Policy from which all trainings started, if any."""
    mean: Finite
    """Mean over training seeds of the mean difference to never growing, in points."""
    spread: Annotated[float, Field(ge=0.0)] | None
    """Standard deviation between training seeds, in points; null if a single training finished."""
    least: Finite
    """Least mean difference of a training seed to never growing, in points."""
    greatest: Finite
    """Mean difference of the chosen policy to never growing, in points. It is the greatest of several noisy figures, so
    it promises more than new hosts show."""
    seeds: Annotated[list[SeedTrial], Field(min_length=1)]
    """Trainings that finished, in the order of training."""
    stopped: list[StoppedSeed] = Field(default_factory=list)
    """Trainings that ended early because they were hopeless, in the order of training; none of them is chosen."""

    trials: Text
    """Receipt of the trials of all policies, as the views name it."""

    @property
    def policies(self) -> frozenset[str]:
        """Return the digests of the policies of all these trainings."""
        return frozenset([*(seed.policy_digest for seed in self.seeds), *(seed.policy_digest for seed in self.stopped)])
