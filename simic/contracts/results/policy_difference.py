"""How differently two policies act in logged states."""

from __future__ import annotations

from typing import Literal

from simic.contracts.base import Contract, Count, Digest, Finite, Text, UnitInterval
from simic.contracts.episode import AttributionRecord
from simic.contracts.results.receipts import Receipt

__all__ = ["ActionChange", "DifferenceGroup", "DifferentState", "GrownPair", "Likeliest", "PolicyDifference", "Share"]


class Share(Contract):
    """A mean probability and its interval over hosts."""

    value: UnitInterval
    lower: UnitInterval | None = None
    """Null for fewer than two hosts."""
    upper: UnitInterval | None = None


class DifferenceGroup(Contract):
    """The states of one group, such as one family."""

    by: Text
    """What the states are grouped by: ``family``, ``epoch`` or ``seeds``."""
    name: Text
    states: Count
    disagreement: Share
    other_choice: UnitInterval
    """Share of the states in which the likeliest actions differ."""


class ActionChange(Contract):
    """The likeliest action of either policy, where they differ."""

    first: Text
    second: Text
    states: Count
    share: UnitInterval
    """Share of all states."""


class Likeliest(Contract):
    """An action in words, with its probability."""

    action: Text
    probability: UnitInterval


class DifferentState(Contract):
    """A state in which the policies disagree: the worst one of its host."""

    run_id: Text
    set: Text
    family: Text
    host_key: Count
    step: Count
    disagreement: UnitInterval
    first: Likeliest
    second: Likeliest


class GrownPair(Contract):
    """One host grown under both policies: an example, no judgement."""

    family: Text
    host_key: Count
    first_return: Finite
    second_return: Finite
    first_attribution: AttributionRecord | None = None
    """What the active seeds contribute at the end; null with more of them than can be measured exactly."""
    second_attribution: AttributionRecord | None = None


class PolicyDifference(Receipt):
    """Where two policies act differently, in the states of a snapshot that leave a choice."""

    stage: Literal["diff-policies"] = "diff-policies"
    first: Text
    second: Text
    first_digest: Digest | None
    """Null for a controller without weights."""
    second_digest: Digest | None
    snapshot_digest: Digest
    sets: list[Text]
    episodes: Count
    hosts: Count
    left_out: dict[str, Count]
    """Number of episodes of the snapshot that were not used, per reason."""
    states: Count
    """Number of states in which an operation besides WAIT was legal."""
    disagreement: Share
    """Mean over the states of the total variation distance of both distributions over whole actions: the smallest
    probability of acting differently that any coupling of the two can have."""
    by_slot_and_blueprint: Share
    """Disagreement if only operation, slot and blueprint of actions count; at most ``disagreement``."""
    by_operation: Share
    """Disagreement if only the operation of actions counts; at most ``by_slot_and_blueprint``."""
    other_choice: UnitInterval
    """Share of the states in which the likeliest actions differ."""
    confidence: UnitInterval
    groups: list[DifferenceGroup]
    changes: list[ActionChange]
    examples: list[DifferentState]
    grown: list[GrownPair]
