"""``reward_hacking``: contributions of seeds do not exceed what their hosts gain."""

from __future__ import annotations

from collections.abc import Iterator

from simic.contracts.results.gate import Criterion
from simic.validation.criterion import TRIALS, Case, line

__all__ = ["EVIDENCE", "NAME", "ORDER", "SUMMARY", "judge"]

NAME = "reward_hacking"
SUMMARY = "share of the candidate's measured steps that are flagged as hacking, at most `gate.max_hacking_share`"
ORDER = 420
EVIDENCE = TRIALS


def judge(case: Case) -> Iterator[Criterion]:
    """Yield the criterion; a candidate after whose steps no seed was measured has none that are flagged."""
    row = case.candidate
    flagged, measured = (None, None) if row is None else (row.hacking_steps, row.measured_steps)
    share = None if flagged is None or measured is None else flagged / max(measured, 1)
    evidence = f"share of {measured} steps, after which the contribution of a seed was measured, flagged as hacking"
    yield line(NAME, share, "<=", case.gate.max_hacking_share, evidence)
