"""``other_configuration``: all receipts have the judging configuration, for which the bounds were chosen."""

from __future__ import annotations

from collections.abc import Iterator

from simic.contracts.results.gate import Criterion
from simic.validation.criterion import Case, line

__all__ = ["NAME", "ORDER", "SUMMARY", "judge"]

NAME = "other_configuration"
SUMMARY = "receipts that were made under another configuration than that of the gate: none"
ORDER = 100


def judge(case: Case) -> Iterator[Criterion]:
    """Yield the criterion."""
    made = (case.report.config_digest, case.report.trials.config_digest)
    theirs = ", ".join(dict.fromkeys(digest[:12] for digest in made))
    evidence = f"receipts made under another configuration than that of the gate, {case.config_digest[:12]}; "
    strange = float(sum(digest != case.config_digest for digest in made))
    if case.report.evidence != case.gate.evidence:
        strange, theirs = strange + 1.0, f"{theirs}, and evidence of {case.report.evidence}"
    yield line(NAME, strange, "<=", 0.0, f"{evidence}theirs: {theirs}")
