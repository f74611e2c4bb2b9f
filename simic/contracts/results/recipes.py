"""A comparison of recipes: complete configurations, each trained with several seeds."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from simic.contracts.base import Contract, Count, Digest, Finite, NonNegative, Positive, Text, UnitInterval
from simic.contracts.results.comparison import PairComparison, Verdict
from simic.contracts.results.receipts import Receipt, check_policy_or_failure
from simic.contracts.results.trials import Estimate

__all__ = ["RecipeArm", "RecipeComparison", "RecipePair", "RecipePolicy", "RecipeTraining"]


class RecipeTraining(Receipt):
    """One training of a recipe; ``config_digest`` is that of the recipe and ``seed`` the training seed."""

    stage: Literal["recipe_training"] = "recipe_training"
    world_digest: Digest
    """Digest of what decides an episode's results: code of hosts and installed plug-ins, data, and settings."""
    plans_digest: Digest | None
    """Digest of the plan book of the recipe's set, which controllers of its collection may follow."""
    torch_version: Text
    """Version of PyTorch, on which the bits of a policy depend."""
    given_snapshot: Digest | None
    """Snapshot on which the recipe was told to train; null if it collected its own experience."""
    given_start: Digest | None = None
    """Policy from which the recipe was told to train; null if it started from nothing."""
    policy_digest: Digest | None
    """Null if training failed."""
    karn_digest: Digest | None = None
    """Karn of the same snapshot that the policy consults; null for a recipe without one."""
    failure: Text | None
    """Why training failed, such as a policy that germinates nothing."""
    episodes: Count
    """Episodes grown to learn from, branches included; 0 with a given snapshot."""

    @model_validator(mode="after")
    def _policy_or_failure(self) -> RecipeTraining:
        check_policy_or_failure(self.policy_digest, self.failure)
        return self


class RecipePolicy(Contract):
    """The policy of one training of a recipe, or why that training failed."""

    seed: Count
    """Training seed."""
    controller: Text
    """Row of the policy in the trials; ``wait`` if training failed, as in a home without a policy."""
    policy_digest: Digest | None
    karn_digest: Digest | None = None
    """Karn that the policy consults; null if it consults none."""
    failure: Text | None
    mean_return: Finite
    train_s: NonNegative
    """Seconds from the first collection to the policy, or of training alone with a given snapshot."""
    episodes: Count
    """Episodes grown to learn from, branches included."""


class RecipeArm(Contract):
    """One recipe with all its trainings; figures are means over training seeds and hosts."""

    name: Text
    profile: Text
    overrides: list[Text]
    config_digest: Digest
    settings: dict[str, Text]
    """Values of the settings in which the recipes differ, by dotted name."""
    mean_return: Finite
    over_wait: Finite
    """Mean return over never growing on the same hosts, in points."""
    spread: NonNegative | None
    """Standard deviation of the mean return between training seeds, in points; null for one seed."""
    test_accuracy: Finite
    parameters: Finite
    """Parameters of the seeds that were kept."""
    extra_compute: Finite
    """Parameters of all seeds times their epochs, over those of the host times the horizon."""
    train_s: NonNegative
    policies: Annotated[list[RecipePolicy], Field(min_length=1)]
    """One per training seed."""


class RecipePair(Contract):
    """``recipe`` minus ``against``, paired by training seed and host; returns in points."""

    recipe: Text
    against: Text
    verdict: Verdict
    """Better or worse where ``adjusted_p`` is at most 0.05 and nothing forbids a verdict."""
    unjudged: Text | None
    """Why there is no verdict, whatever p says: all trainings of a recipe are worth the same; null if p decides."""
    difference: Estimate
    """Mean difference; Student's interval over training seeds and hosts."""
    by_seed: list[Estimate]
    """Mean difference for each training seed, with intervals over hosts alone."""
    by_family: dict[str, Estimate]
    """Mean difference within each family of two or more hosts."""
    u: NonNegative
    """Mann-Whitney U of the mean returns of the trainings: pairs of trainings in which ``recipe`` is ahead, ties half.
    """
    p: UnitInterval
    """Exact two-sided p value of ``u`` if both recipes give trainings of one distribution of mean returns."""
    adjusted_p: UnitInterval
    """``p`` adjusted for all pairs of the comparison by Holm's method."""
    probability_of_improvement: UnitInterval
    """``u`` over the number of pairs of trainings."""
    effect: Annotated[float, Field(ge=-1.0, le=1.0)]
    """Rank-biserial correlation: twice the probability of improvement less 1."""


class RecipeComparison(Receipt):
    """All pairs of recipes; ``seed`` is the first training seed, ``config_digest`` that of the judging settings."""

    stage: Literal["ab"] = "ab"
    set: Text
    """Set of the judging hosts."""
    seeds: Annotated[list[Count], Field(min_length=1)]
    hosts_per_family: Positive
    first_key: Count
    """Key of the first judging host; equal sets, splits and numbers of hosts give the same hosts."""
    snapshot_digest: Digest | None
    """Snapshot on which all recipes trained; null if each collected its own experience."""
    start_digest: Digest | None = None
    """Policy from which all recipes trained; null if they started from nothing."""
    recipes: Annotated[list[RecipeArm], Field(min_length=2)]
    is_against_first: bool
    """Whether each later recipe is compared with the first one only, instead of each recipe with each later one."""
    pairs: list[RecipePair]
    """Each recipe minus each later one, or each later one minus the first; empty for one training seed, which says
    nothing about recipes."""
    least_p: UnitInterval
    """Smallest adjusted p value that this number of seeds and pairs can give; above 0.05 no verdict is possible."""
    policies: list[PairComparison]
    """For one training seed: the policies themselves over hosts, in the same pairs; empty for several.

    Recipes of which the training failed are one, ``wait``.
    """
    trials: Text
    """Receipt of the trials of all policies, as the views name it."""
