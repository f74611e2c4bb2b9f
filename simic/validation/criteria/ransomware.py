"""``ransomware``: no seed is kept that a fallen host depends on."""

from __future__ import annotations

from collections.abc import Iterator

from simic.contracts.results.gate import Criterion
from simic.validation.criterion import TRIALS, Case, line

__all__ = ["EVIDENCE", "NAME", "ORDER", "SUMMARY", "judge"]

NAME = "ransomware"
SUMMARY = "share of the candidate's measured steps that are flagged as ransomware, at most `gate.max_ransomware_share`"
ORDER = 430
EVIDENCE = TRIALS


def judge(case: Case) -> Iterator[Criterion]:
    """Yield the criterion; a candidate after whose steps no seed was measured has none that are flagged."""
    row = case.candidate
    flagged, measured = (None, None) if row is None else (row.ransomware_steps, row.measured_steps)
    share = None if flagged is None or measured is None else flagged / max(measured, 1)
    evidence = f"share of {measured} steps, after which the contribution of a seed was measured, flagged as ransomware"
    yield line(NAME, share, "<=", case.gate.max_ransomware_share, evidence)
