"""Which number a policy gets: a pure decision.

Major: the contracts changed. Minor: the architecture or the features changed. Patch: only the weights did.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["FIRST_VERSION", "Lineage", "next_version", "parse"]

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
