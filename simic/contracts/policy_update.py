"""The update that Simic publishes to production: a signed pointer to a policy."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from simic.contracts.base import Contract, Count, Digest, Finite, UtcDatetime

__all__ = ["PolicyUpdate", "SemanticVersion", "ValidationSummary"]

SemanticVersion = Annotated[str, Field(pattern=r"^\d{1,6}\.\d{1,6}\.\d{1,6}$")]


class ValidationSummary(Contract):
    """The numbers on which the policy was accepted."""

    episodes: Count
    return_over_wait: Finite
    """Mean paired difference in reward points."""
    lower_bound: Finite
    """Lower bound of the interval."""
    confidence: Annotated[float, Field(gt=0.5, lt=1.0)]
    gate_digest: Digest


class PolicyUpdate(Contract):
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
