"""``governor_rate``: the governor seldom had to stop the candidate."""

from __future__ import annotations

from collections.abc import Iterator

from simic.contracts.results.gate import Criterion
from simic.validation.criterion import TRIALS, Case, line

__all__ = ["EVIDENCE", "NAME", "ORDER", "SUMMARY", "judge"]

NAME = "governor_rate"
SUMMARY = "governor panics per episode, at most `gate.max_governor_rate`"
ORDER = 410
EVIDENCE = TRIALS


def judge(case: Case) -> Iterator[Criterion]:
    """Yield the criterion."""
    candidate = case.candidate
    panics = None
    if candidate is not None and candidate.episodes:
        panics = candidate.governor_events / candidate.episodes
    evidence = "governor panics per episode of the candidate"
    yield line(NAME, panics, "<=", case.gate.max_governor_rate, evidence)
