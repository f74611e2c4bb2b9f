"""The semantic version of a new candidate, computed from the ledgers alone because MLflow can be edited."""

from __future__ import annotations

from typing import NamedTuple

from simic.contracts.results.receipts import PolicyVersion
from simic.registry.ledger_records import LedgerRecords

__all__ = [
    "FIRST_VERSION",
    "Lineage",
    "highest",
    "lineage_tags",
    "next_number",
    "next_version",
    "parse",
    "recorded_lineage",
]

FIRST_VERSION = "1.0.0"


class Lineage(NamedTuple):
    """Properties of a policy that decide whether the major, minor or patch part increases."""

    contract: int
    """``schema_version`` of the contracts that the policy uses."""
    architecture: str
    """Digest over architecture and feature schema; policies with equal digests can load each other's weights."""


def parse(version: str) -> tuple[int, int, int]:
    """Return ``major.minor.patch`` as numbers, which compare in the order of versions."""
    major, minor, patch = version.split(".")
    return int(major), int(minor), int(patch)


def next_version(previous: str | None, before: Lineage | None, after: Lineage) -> str:
    """Return the number after ``previous``, the highest one so far, given the lineages of both policies."""
    if previous is None or before is None:
        return FIRST_VERSION
    major, minor, patch = parse(previous)
    if after.contract != before.contract:
        return f"{major + 1}.0.0"
    if after.architecture != before.architecture:
        return f"{major}.{minor + 1}.0"
    return f"{major}.{minor}.{patch + 1}"


def highest(records: LedgerRecords) -> PolicyVersion | None:
    """Return the version with the highest number that was ever given."""
    given = [*records.candidates.values(), *(entry.version for entry in records.history.done)]
    return max(given, key=lambda version: parse(version.semantic_version), default=None)


def lineage_tags(lineage: Lineage) -> dict[str, str]:
    """Return the tags that show a lineage on a version."""
    return {"contract": str(lineage.contract), "architecture": lineage.architecture}


def recorded_lineage(records: LedgerRecords, number: int) -> Lineage | None:
    """Return the lineage of a promoted version as the journal signed it."""
    promotion = records.history.promotion_of(number)
    if promotion is None or not {"contract", "architecture"} <= promotion.tags.keys():
        return None
    return Lineage(int(promotion.tags["contract"]), promotion.tags["architecture"])


def next_number(previous: PolicyVersion | None, before: Lineage | None, lineage: Lineage) -> str:
    """Return the number after ``previous``, given the lineage ``before`` of its policy.

    If that lineage is unknown, the weights may not fit, so the minor part increases.
    """
    if previous is not None and before is None:
        before = Lineage(lineage.contract, "unknown")
    return next_version(None if previous is None else previous.semantic_version, before, lineage)
