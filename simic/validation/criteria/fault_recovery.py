"""``fault_recovery``: the candidate decides the same during faults of the machine or after them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from simic.contracts.controllers import ControllerSpec
from simic.contracts.errors import TransientError
from simic.contracts.results.gate import Criterion, Probe
from simic.contracts.state import HostIdentity
from simic.controllers.factory import make
from simic.validation.criterion import Case
from simic.validation.disturbances import CASES, Decider, Job, failures
from simic.validation.probing import States, Subject, decision_bytes, none_fail, states_of

__all__ = ["NAME", "ORDER", "SUMMARY", "judge", "load", "measure"]

NAME = "fault_recovery"
SUMMARY = (
    "faults of memory, files, threads or data, or a machine without network or device, that change a decision: none"
)
ORDER = 575


def load(spec: ControllerSpec, place: str, hosts: tuple[HostIdentity, ...], states: States, folder: Path) -> Decider:
    """Verify and load the candidate of a folder; ``place`` is the field of the spec that names it."""
    policy = make(spec.model_copy(update={place: str(folder)}), hosts)
    return lambda: decision_bytes(policy.decide(*states)).tobytes()


def measure(subject: Subject) -> Probe:
    """Inject six faults while the candidate decides in a process of its own."""
    states = states_of(subject)
    start = partial(load, subject.spec, subject.place, tuple(subject.hosts), states)
    job = Job(start, subject.folder, start(subject.folder)(), subject.gate.max_recovery_s)
    try:
        reasons = failures(job)
    except TransientError as error:
        reasons = dict.fromkeys(CASES, str(error))
    detail = "; ".join(f"{name}: {why}" for name, why in reasons.items())
    return Probe(value=float(len(reasons)), count=len(CASES), detail=detail[:1000])


def judge(case: Case) -> Iterator[Criterion]:
    """Yield the criterion."""
    yield none_fail(case, NAME, "faults of the machine after which it decides otherwise, or too late")
