"""``hosts_outside_test_split``: training saw none of the hosts."""

from __future__ import annotations

from collections.abc import Iterator

from simic.contracts.results.gate import Criterion
from simic.contracts.splits import Split, split_of
from simic.validation.criterion import Case, line

__all__ = ["NAME", "ORDER", "SUMMARY", "judge"]

NAME = "hosts_outside_test_split"
SUMMARY = "hosts that training may have seen: none"
ORDER = 150


def judge(case: Case) -> Iterator[Criterion]:
    """Yield the criterion."""
    hosts = case.hosts
    leaked = None if not hosts else float(sum(split_of(name, key) is not Split.TEST for name, key in hosts))
    yield line(NAME, leaked, "<=", 0.0, "hosts that training may have seen")
