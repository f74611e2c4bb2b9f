"""``policy_memory``: the candidate's weights fit into the memory that a training can spare."""

from __future__ import annotations

from collections.abc import Iterator

from simic.contracts.results.gate import Criterion, Probe
from simic.validation.criterion import Case, line
from simic.validation.probing import Subject

__all__ = ["NAME", "ORDER", "SUMMARY", "judge", "measure"]

NAME = "policy_memory"
SUMMARY = "MB of weights while deciding, at most `gate.max_policy_mb`"
ORDER = 570


def measure(subject: Subject) -> Probe:
    """Add up the bytes of all weights and statistics as they are held while deciding."""
    sizes = subject.policy(is_decisive=True).tensor_bytes()
    return Probe(value=sum(sizes) / 1e6, count=len(sizes))


def judge(case: Case) -> Iterator[Criterion]:
    """Yield the criterion."""
    probe = case.report.probes.get(NAME)
    evidence = f"MB of {0 if probe is None else probe.count} tensors of the policy while it decides"
    yield line(
        NAME, probe.value if probe is not None and probe.count else None, "<=", case.gate.max_policy_mb, evidence
    )
