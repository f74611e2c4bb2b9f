"""``decision_latency``: the candidate decides for one host fast enough.

The value is the share of decisions over the bound, not a time: equal candidates shall have equal evidence.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

import numpy as np

from simic.contracts.results.gate import Criterion, Probe
from simic.validation.criterion import Case, line
from simic.validation.probing import Subject, states_of

__all__ = ["NAME", "ORDER", "SUMMARY", "judge", "measure"]

NAME = "decision_latency"
SUMMARY = "share of decisions for one host that take longer than `gate.max_decision_ms`, at most a half"
ORDER = 560
_LARGEST_SHARE = 0.5


def measure(subject: Subject) -> Probe:
    """Time one decision per state, each host alone, after one that is not timed."""
    policy, states = subject.policy(is_decisive=True), states_of(subject)
    alone = [states.take(np.array([row])) for row in range(len(states.uniforms))]
    policy.decide(*alone[0])
    times = []
    for state in alone:
        started = perf_counter()
        policy.decide(*state)
        times.append(1000.0 * (perf_counter() - started))
    slow = float(np.mean(np.array(times) > subject.gate.max_decision_ms))
    return Probe(value=slow, count=len(times), detail=f"median {np.median(times):.3g} ms")


def judge(case: Case) -> Iterator[Criterion]:
    """Yield the criterion."""
    probe, bound = case.report.probes.get(NAME), case.gate.max_decision_ms
    evidence = f"share of {0 if probe is None else probe.count} decisions for one host that took over {bound:g} ms"
    yield line(NAME, probe.value if probe is not None and probe.count else None, "<=", _LARGEST_SHARE, evidence)
