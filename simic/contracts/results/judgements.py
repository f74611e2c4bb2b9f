"""Judgements of candidates: their order in a home, and the error that each may spend."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from simic.contracts.base import Contract, Count, Digest, Text, UtcDatetime
from simic.contracts.names import MODEL_NAME

__all__ = ["Judgement", "JudgementEntry", "Level", "Ordinal"]

Level = Annotated[float, Field(gt=0.0, lt=0.5)]
"""Chance of an error."""
Ordinal = Annotated[int, Field(ge=1, le=2**31)]
"""Number of a judgement in its home, from 1."""


class Judgement(Contract):
    """Place of a judgement in its home, and its share of the error budget."""

    ordinal: Ordinal
    """Number in the home, from 1; with the set it chooses the hosts."""
    attempts: Ordinal
    """Judgements against the same champion, or without one, up to this one."""
    budget: Level
    """Largest chance that the home ever promotes a candidate that is no better than its champion or a baseline."""
    alpha: Level
    """Chance that this judgement accepts such a candidate: the level of its bounds."""
    spent: Annotated[float, Field(gt=0.0)]
    """Sum of the levels up to this one, without those of accepted candidates."""


class JudgementEntry(Judgement):
    """A line of the ledger of judgements: one that began, whatever came of it."""

    schema_version: Literal[1] = 1
    model: Text = MODEL_NAME
    """Registered model of the candidate; absent in lines of earlier versions, which judged policies alone."""
    set: Text
    policy_digest: Digest
    """The candidate: a policy or Karn."""
    champion_digest: Digest | None
    code_version: Text
    config_digest: Digest
    seed: Count
    world_digest: Digest
    """Digest of what else decides the evidence. For a policy in trials these are hosts, plug-ins and the plan books of
    all judged sets; for Karn hosts, plug-ins and the policy that consults it; where reports judge, the snapshot."""
    begun_at: UtcDatetime

    @property
    def judgement(self) -> Judgement:
        """The part of which a decision keeps a copy."""
        return Judgement(**{name: getattr(self, name) for name in Judgement.model_fields})
