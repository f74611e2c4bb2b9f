"""The files of the reward families and the ranges they declare for their terms.

A line ``-- term NAME in [LOW, HIGH]: meaning`` declares one; the bounds are SQL over the settings, and every curation
checks every step against them.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import NamedTuple

from simic.contracts.errors import ConfigError

__all__ = ["Term", "family_statement", "family_terms", "range_offenders"]

_TERM = re.compile(r"^-- term (reward_[a-z_]+) in \[(.+)\]: (.+)$", re.MULTILINE)


class Term(NamedTuple):
    """One summand of a reward."""

    name: str
    low: str
    """SQL."""
    high: str
    meaning: str


def family_statement(family: str) -> str:
    """The SQL of a family; raises ConfigError where it has none."""
    entry = files("simic.curation").joinpath("sql", "rewards", f"{family}.sql")
    if not entry.is_file():
        raise ConfigError(f"reward family {family!r} has no file {family}.sql in simic/curation/sql/rewards")
    return entry.read_text("utf-8")


def family_terms(sql: str) -> list[Term]:
    """The terms a family declares, in the order in which they are added."""
    return [Term(name, *_split_bounds(bounds), meaning) for name, bounds, meaning in _TERM.findall(sql)]


def range_offenders(sql: str) -> str:
    """A SELECT of every step at which a declared term is missing or outside its range."""
    branches = [
        f"SELECT '{term.name}_in_range' AS promise, run_id, step FROM reward_terms\n"  # noqa: S608 - our own files
        f"WHERE NOT coalesce({term.name} BETWEEN ({term.low}) - $points_tolerance "
        f"AND ({term.high}) + $points_tolerance, false)"
        for term in family_terms(sql)
    ]
    return "\nUNION ALL\n".join(branches)


def _split_bounds(bounds: str) -> tuple[str, str]:
    """At the last comma: a function in the lower bound may hold others."""
    low, _, high = bounds.rpartition(",")
    return low.strip(), high.strip()
