"""The proof: policies of several trainings against all baselines on the same held-out hosts, and its receipts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from simic.contracts.base import Contract, Count, Digest, Finite, Text
from simic.contracts.results.receipts import Receipt, check_policy_or_failure
from simic.contracts.results.trials import Estimate, StaticTrial

__all__ = [
    "Proof",
    "ProofLeftOut",
    "ProofRow",
    "ProofSeed",
    "ProofSet",
    "ProofStatic",
    "ProofTraining",
    "ProofTrial",
]


class ProofTraining(Receipt):
    """One training with its judgement by the gate; ``seed`` is the training seed."""

    stage: Literal["proof_training"] = "proof_training"
    set: Text
    without: list[Text]
    """Families that collection left out."""
    world_digest: Digest
    """Digest of what decides an episode's results: code of hosts and installed plug-ins, data, and settings."""
    torch_version: Text
    """Version of PyTorch, on which the bits of policies and episodes depend."""
    plans_digest: Digest | None
    """Digest of the plan book that the baselines of the judgement followed."""
    policy_digest: Digest | None
    """Null if training failed."""
    failure: Text | None
    """Why training failed, such as a policy that germinates nothing."""
    snapshot_digest: Digest | None
    episodes: Count
    """Episodes grown to learn from, branches included."""
    accepted: bool
    """Decision of the gate, without a champion to compare with; false if training failed."""
    failed_criteria: list[Text]

    @model_validator(mode="after")
    def _policy_or_failure(self) -> ProofTraining:
        check_policy_or_failure(self.policy_digest, self.failure)
        return self


class ProofStatic(Contract):
    """The networks that a trial ended with, trained from the start; lists are in the order of the trial's hosts."""

    same: Literal["epochs", "compute"]
    """Quantity in which the static networks equal the episodes: epochs, or parameters summed over epochs."""
    epochs: list[Count]
    returns: list[Finite]
    test_accuracies: list[Finite]
    governor_events: Count


class ProofTrial(Receipt):
    """One controller on the held-out hosts of a set; all lists are in the order of the hosts."""

    stage: Literal["proof_trial"] = "proof_trial"
    set: Text
    world_digest: Digest
    """Digest of what decides an episode's results: code of hosts and installed plug-ins, data, and settings."""
    torch_version: Text
    processor: Text
    """Instruction set for which PyTorch computes: with another one the bits differ, which loosens the pairing."""
    controller: Text
    """A baseline, or the name of the training whose policy acts."""
    policy_digest: Digest | None
    plans_digest: Digest | None
    """Digest of the set's plan book, if the controller is a baseline and there is one."""
    host_keys: list[Count]
    families: list[Text]
    returns: list[Finite]
    """Undiscounted returns in points."""
    test_accuracies: list[Finite]
    validation_accuracies: list[Finite]
    """Validation accuracies of the committed networks."""
    parameters: list[Count]
    """Parameters of the seeds that were kept."""
    host_parameters: list[Count]
    """Trainable parameters of the hosts without seeds."""
    extra_compute: list[Finite]
    """Parameters of seeds, summed over the epochs in which they are alive or fossilised, over the host's own parameters
    times the horizon; of an arm that searches over all its episodes, each after the first of which adds 1."""
    decisions: list[Finite]
    decision_multiply_adds: list[Finite]
    """Multiply-adds of one decision in the linear layers of a policy, for the graph of the host; 0 for a baseline."""
    controller_compute: list[Finite]
    """Multiply-adds of all decisions, over those of the host's training; as in ``FamilyTrial``."""
    probe_compute: list[Finite]
    """Multiply-adds of the contributions and gradients of seeds, over those of the host's training."""
    test_returns: list[Finite]
    """Returns with the test accuracy in place of the validation accuracy."""
    episodes_grown: list[Count]
    """Episodes of which one was taken; more than 1 for an arm that searches."""
    rents: list[Finite]
    """Points of rent in each return."""
    illegal_actions: Count
    governor_events: Count
    """Episodes that the governor stopped."""
    static: list[ProofStatic]
    """Final networks of a policy's episodes, trained from the start; empty for a baseline."""

    @property
    def per_host(self) -> dict[str, list[Any]]:
        """Return the fields with one entry per host."""
        return {name: value for name, value in self if isinstance(value, list) and name != "static"}

    @model_validator(mode="after")
    def _one_entry_per_host(self) -> ProofTrial:
        columns = [*self.per_host.values(), *(static.returns for static in self.static)]
        columns += [column for static in self.static for column in (static.epochs, static.test_accuracies)]
        if any(len(column) != len(self.host_keys) for column in columns):
            raise ValueError(f"expected {len(self.host_keys)} entries in every list, one per host key")
        return self


class ProofRow(Contract):
    """One controller on all hosts of a set; for the learned policies the mean over training seeds."""

    controller: Text
    mean_return: Finite
    over_wait: Estimate | None
    """Null for ``wait``."""
    by_family: dict[str, Estimate | None]
    """Difference to ``wait`` within each family."""
    test_accuracy: Finite
    parameters: Finite
    validation_accuracy: Finite
    test_over_wait: Estimate | None
    """Difference of test accuracies to ``wait``, as a share; null for ``wait``."""
    host_share: Finite
    """Mean parameters of kept seeds over those of the hosts."""
    extra_compute: Finite
    """Mean of ``extra_compute`` of the trials."""
    decisions: Finite
    """Mean number of decisions for a host."""
    decision_multiply_adds: Finite
    """Mean of ``decision_multiply_adds`` of the trials."""
    controller_compute: Finite
    """Mean of ``controller_compute`` of the trials."""
    probe_compute: Finite
    """Mean of ``probe_compute`` of the trials."""
    scored_by: Literal["validation", "test"]
    """Accuracy that the returns end with, and those of the controllers in differences to this one. ``test`` is for the
    arms that search, whose choice inflates their validation accuracies."""
    by_test: Estimate | None
    """Difference to ``wait`` of ``test_returns``; null for ``wait``."""
    episodes_grown: Finite
    """Mean number of episodes grown on a host."""
    share_of_hindsight: Estimate | None
    """Gain of ``test_returns`` over those of ``blind``, or of ``wait`` without ``blind``, as a share of the same gain
    of ``hindsight``; null if it takes no part or its gain may be 0."""
    by_rent: list[Estimate | None]
    """Difference to ``wait`` at each of the set's ``rent_factors``."""


class ProofSeed(Contract):
    """The policy of one training seed; intervals are over hosts."""

    seed: Count
    policy_digest: Digest | None
    """Null if training failed; the figures are those of ``wait`` then, as in a home without a policy."""
    failure: Text | None
    accepted: bool
    failed_criteria: list[Text]
    over: dict[str, Estimate]
    """Difference to each baseline."""
    test_accuracy: Finite
    parameters: Finite
    illegal_actions: Count
    governor_events: Count
    """Episodes that the governor stopped."""


class ProofLeftOut(Contract):
    """Hosts of one family under policies whose training left this family out, and under those that met it."""

    family: Text
    hosts: Count
    left_out: Estimate
    """Difference to ``wait`` of the policies that never met the family."""
    trained_with: Estimate
    """Difference to ``wait`` of the policies that met the family."""
    difference: Estimate
    """``left_out`` minus ``trained_with``, paired by training seed and host."""
    baselines: dict[str, Estimate]
    """Difference to ``wait`` of each baseline; all of them were searched on hosts of the family."""
    accepted: Count
    """Number of the trainings without the family whose policies passed the gate, which judges on all families."""
    failures: Count
    """Number of trainings without the family that failed."""


class ProofSet(Contract):
    """Policies trained on one set against the baselines on the held-out hosts of a set, the same or another."""

    set: Text
    """Set of the hosts."""
    trained_on: Text
    hosts: Count
    families: dict[str, Count]
    """Number of hosts of each family."""
    first_key: Count
    """Key of the first host; equal sets and numbers of hosts give the same hosts."""
    without_book: list[Text]
    """Baselines that a missing plan book, or a book without a tree, leaves out or changes."""
    rent_factors: list[Finite]
    """Multiples of the rent per parameter at which the same episodes are judged too."""
    static: list[StaticTrial]
    """Learned policies against the networks that they ended with; the differences are over training seeds and hosts."""
    rows: list[ProofRow]
    """Baselines, the learned policies last."""
    over: dict[str, Estimate]
    """Learned policies minus each baseline, over training seeds and hosts."""
    share_of_oracle: Estimate | None
    """Gain over ``wait`` as a share of the oracle's gain; null without an oracle, or if its gain may be 0."""
    spread: Annotated[float, Field(ge=0.0)] | None
    """Standard deviation of the mean gain over ``wait`` between training seeds, in points; null for one seed."""
    seeds: list[ProofSeed]
    left_out: list[ProofLeftOut]


class Proof(Contract):
    """All results of ``simic proof``; equal settings, seeds and code give equal figures."""

    code_version: Text
    profile: Text
    config_digest: Digest
    """Digest of the profile with its overrides, before the set and the families left out are put in."""
    command: Text
    seeds: list[Count]
    hosts_per_family: Count
    confidence: Finite
    trainings: Count
    further: list[Text] = Field(default_factory=list)
    """Sets of ``collect.further``, whose training hosts the trainings on other sets learn from too."""
    episodes: Count
    """Episodes grown to learn from, over all trainings."""
    sets: list[ProofSet]
