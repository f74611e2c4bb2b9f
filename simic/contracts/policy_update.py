"""The update that Simic publishes to production: a signed pointer to a policy or Karn."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from simic.contracts.actor import Actor
from simic.contracts.base import Contract, Count, Digest, Finite, UnitInterval, UtcDatetime
from simic.contracts.results.log_evidence import EvidenceKind

__all__ = ["PolicyUpdate", "RolloutPlan", "SemanticVersion", "ValidationSummary"]

SemanticVersion = Annotated[str, Field(pattern=r"^\d{1,6}\.\d{1,6}\.\d{1,6}$")]


class _WithoutAbsent(Contract):
    """Leaves out absent fields, so that it has the bytes, and so the signature, that earlier releases gave it."""

    @model_serializer(mode="wrap")
    def _present(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value is not None}


class ValidationSummary(_WithoutAbsent):
    """The numbers on which the policy was accepted."""

    episodes: Count
    return_over_wait: Finite
    """Mean paired difference in reward points."""
    lower_bound: Finite
    """Lower bound of the interval."""
    confidence: Annotated[float, Field(gt=0.5, lt=1.0)]
    gate_digest: Digest
    without: list[Annotated[str, Field(min_length=1, max_length=128)]] | None = None
    """Criteria of the gate that ``gate.without`` left out; absent in updates of earlier releases, which do not say."""
    evidence: EvidenceKind | None = None
    """Whether hosts were grown (trials) or logged episodes were judged (reports); absent as ``without`` is."""

    consulted_by: Digest | None = None
    """For Karn, digest of the policy that consulted it; absent for a policy. Nothing is known of Karn with another
    policy."""


class RolloutPlan(Contract):
    """How production takes a new policy: a share of its consumers first, all of them if it succeeds."""

    share: Annotated[float, Field(gt=0.0, lt=1.0)]
    """Share of the consumers that use the policy; the others use the baseline."""
    hours: Annotated[float, Field(gt=0.0, le=8760.0)]
    """Hours from ``issued_at`` before all consumers may use it."""
    min_success: UnitInterval
    """Least share of its episodes that must succeed; below it the policy is rolled back."""
    min_episodes: Annotated[int, Field(ge=1, le=2**53)]
    """Least number of its episodes; with fewer the evidence is insufficient."""
    baseline: Digest
    """Digest of the sealed policy of the consumers outside the share."""
    baseline_version: SemanticVersion


class PolicyUpdate(_WithoutAbsent):
    """A signed update; the signature covers the canonical form of all other fields."""

    schema_version: Literal[1] = 1
    policy_name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]
    version: SemanticVersion
    digest: Digest
    """Digest of the sealed policy, as in its manifest."""
    reference: Annotated[str, Field(pattern=r"^models:/[a-z][a-z0-9_-]{0,63}/[1-9]\d{0,8}$")]
    """Reference to the version in the registry."""
    targets: Annotated[list[Annotated[str, Field(max_length=64)]], Field(min_length=1, max_length=64)]
    """Controllers that are to use the policy."""
    validation: ValidationSummary
    issued_at: UtcDatetime
    key_id: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")] = "0" * 128
    """Ed25519 signature in hex; all zeros until signed."""
    rollout: RolloutPlan | None = None
    """Plan of the rollout that this update begins; absent if all consumers are to use the policy now."""
    issued_by: Actor | None = None
    """Who had it published; absent in updates of earlier releases."""
