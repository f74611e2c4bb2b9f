"""``hosts_of_other_judgements``: the number of the judgement chose the hosts."""

from __future__ import annotations

from collections.abc import Iterator

from simic.contracts.results.gate import Criterion
from simic.validation.criterion import TRIALS, Case, line
from simic.validation.judging_keys import keys_of_others

__all__ = ["EVIDENCE", "NAME", "ORDER", "SUMMARY", "judge"]

NAME = "hosts_of_other_judgements"
SUMMARY = "hosts that the judgement does not draw: none"
ORDER = 160
EVIDENCE = TRIALS


def judge(case: Case) -> Iterator[Criterion]:
    """Yield the criterion."""
    trials, ordinal = case.report.trials, case.judgement.ordinal
    strange = float(keys_of_others(trials.host_keys, ordinal)) if trials.host_keys else None
    evidence = f"hosts that judgement {ordinal} of set {trials.set} does not draw"
    yield line(NAME, strange, "<=", 0.0, evidence)
