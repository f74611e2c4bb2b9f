"""Which semantic version a candidate gets, by the ledgers alone: anybody may have edited what MLflow shows."""

from __future__ import annotations

from typing import NamedTuple

from simic.contracts.receipts import PolicyVersion
from simic.registry.ledger_records import LedgerRecords

__all__ = [
    "FIRST_VERSION",
    "Lineage",
    "highest",
    "lineage_tags",
    "next_number",
    "next_version",
    "parse",
    "told_lineage",
]

FIRST_VERSION = "1.0.0"


class Lineage(NamedTuple):
    """What decides which part of the number moves."""

    contract: int
    """``schema_version`` of the contracts the policy speaks."""
    architecture: str
    """Names architecture and feature schema together; equal names take each other's weights."""


def parse(version: str) -> tuple[int, int, int]:
    """``major.minor.patch`` as numbers, so that versions compare as versions."""
    major, minor, patch = version.split(".")
    return int(major), int(minor), int(patch)


def next_version(previous: str | None, before: Lineage | None, after: Lineage) -> str:
    """The number that follows ``previous``, the highest one given so far, whose policy was ``before``."""
    if previous is None or before is None:
        return FIRST_VERSION
    major, minor, patch = parse(previous)
    if after.contract != before.contract:
        return f"{major + 1}.0.0"
    if after.architecture != before.architecture:
        return f"{major}.{minor + 1}.0"
    return f"{major}.{minor}.{patch + 1}"


def highest(records: LedgerRecords) -> PolicyVersion | None:
    """The version with the highest number that was ever given."""
    given = [*records.candidates.values(), *(entry.version for entry in records.history.done)]
    return max(given, key=lambda version: parse(version.semantic_version), default=None)


def lineage_tags(lineage: Lineage) -> dict[str, str]:
    """The lineage as a version shows it."""
    return {"contract": str(lineage.contract), "architecture": lineage.architecture}


def told_lineage(records: LedgerRecords, number: int) -> Lineage | None:
    """The lineage of a version that was promoted, as the journal signed it."""
    promotion = records.history.promotion_of(number)
    if promotion is None or not {"contract", "architecture"} <= promotion.tags.keys():
        return None
    return Lineage(int(promotion.tags["contract"]), promotion.tags["architecture"])


def next_number(previous: PolicyVersion | None, before: Lineage | None, lineage: Lineage) -> str:
    """The number that follows ``previous``, whose policy was ``before``.

    Where nothing proves what it was, the number says that the weights may not fit: the minor part moves.
    """
    if previous is not None and before is None:
        before = Lineage(lineage.contract, "unknown")
    return next_version(None if previous is None else previous.semantic_version, before, lineage)
