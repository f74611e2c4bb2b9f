"""Semantic versions of policies."""

from __future__ import annotations

import pytest

from simic.registry.version_numbers import FIRST_VERSION, Lineage, next_version, parse

BEFORE = Lineage(contract=1, architecture="small")


def test_the_first_policy_starts_the_count() -> None:
    assert next_version(None, None, BEFORE) == FIRST_VERSION


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (BEFORE, "2.3.10"),
        (Lineage(1, "large"), "2.4.0"),
        (Lineage(2, "small"), "3.0.0"),
        (Lineage(2, "large"), "3.0.0"),
    ],
    ids=["weights", "architecture", "contract", "both"],
)
def test_the_part_that_moves_says_what_changed(after: Lineage, expected: str) -> None:
    assert next_version("2.3.9", BEFORE, after) == expected


def test_versions_compare_as_numbers() -> None:
    assert parse("1.10.0") > parse("1.9.9")
