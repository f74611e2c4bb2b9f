"""What a probe of the gate examines: the candidate itself, on states that its trials met.

A criterion with a function ``measure`` is a probe. Validation calls it with a ``Subject`` and keeps the ``Probe`` that
it returns in the sealed report, where ``judge`` finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from simic.contracts.actions import HEADS
from simic.contracts.batches import Decisions, Masks, Observations, relevance
from simic.contracts.controllers import ControllerSpec
from simic.contracts.errors import ContractError, SimicError
from simic.contracts.results.gate import Criterion, Probe
from simic.contracts.results.karn import KarnReport, Trained
from simic.contracts.settings.run import GateConfig
from simic.contracts.state import HostIdentity
from simic.controllers.factory import make
from simic.controllers.learned_controller import LearnedController
from simic.hosts.rollout import Step
from simic.validation.criterion import Case, line
from simic.validation.episodes import illegal_rows

__all__ = [
    "States",
    "Subject",
    "count_failures",
    "decision_bytes",
    "faulty",
    "live_states",
    "none_fail",
    "one_thread",
    "states_of",
]

_MOST_STATES = 40
"""States that a probe examines."""


class States(NamedTuple):
    """N states with their masks, and random numbers [N, heads] in [0, 1) for the decisions."""

    observations: Observations
    masks: Masks
    uniforms: NDArray[np.float64]

    def take(self, rows: NDArray[np.int64]) -> States:
        """Return the given states, in the given order."""
        masks = self.masks.take(rows, self.observations.slot_ptr)
        return States(self.observations.take(rows), masks, self.uniforms[rows])


class Subject(NamedTuple):
    """A candidate and the states that it is probed on: of episodes that it grew again, one host per family, or of a
    log."""

    spec: ControllerSpec
    """The candidate as it acts in trials."""
    hosts: Sequence[HostIdentity]
    """Hosts of these states."""
    states: Sequence[States]
    mismatches: int
    """Number of the hosts that were grown again whose return differs from that in the trials."""
    training: Trained
    gate: GateConfig
    started_at: datetime
    """Start of the validation."""

    @property
    def folder(self) -> Path:
        """Return the folder of the sealed candidate."""
        return Path(self.training.path)

    @property
    def place(self) -> str:
        """Return the field of the spec that names this folder."""
        return "karn_path" if isinstance(self.training, KarnReport) else "policy_path"

    @property
    def keyring(self) -> Path:
        """Return the folder of the public keys that policies may be sealed with."""
        return Path(self.spec.keyring_path or "")

    def policy(self, *, is_decisive: bool) -> LearnedController:
        """Load the candidate anew, verified.

        Raises:
            ContractError: if it is no policy with weights.
        """
        made = make(self.spec.model_copy(update={"is_decisive": is_decisive}), self.hosts)
        if not isinstance(made, LearnedController):
            raise ContractError(f"expected a policy with weights as the candidate, found controller {made.name!r}")
        return made


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread; its earlier number is restored afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def live_states(steps: Sequence[Step]) -> list[States]:
    """Return the states of each step in which a host had to be decided for."""
    return [
        States(step.observations, step.masks, np.zeros((len(step.live), len(HEADS)))).take(np.flatnonzero(step.live))
        for step in steps
    ]


def states_of(subject: Subject) -> States:
    """Return at most 40 states, spread over epochs and hosts.

    Raises:
        ContractError: if there are none.
    """
    parts = subject.states
    if not parts:
        raise ContractError("the candidate was neither grown again nor judged from a log: there are no states")
    masks = [part.masks for part in parts]
    joined = States(
        Observations.join([part.observations for part in parts]),
        Masks(*(np.concatenate([getattr(mask, name) for mask in masks]) for name in ("op", "slot", "blueprint"))),
        np.random.default_rng(0).random((sum(len(part.uniforms) for part in parts), len(HEADS))),
    )
    count = len(joined.uniforms)
    rows = np.unique(np.linspace(0, count - 1, min(count, _MOST_STATES)).astype(np.int64))
    return joined.take(rows)


def faulty(decisions: Decisions, states: States) -> NDArray[np.bool_]:
    """Return bool [N]: decisions that the masks forbid, or whose log-probability is not finite."""
    ops = np.clip(decisions.actions[:, 0], 0, None)
    is_broken = relevance(ops) & ~np.isfinite(decisions.log_probs)
    return illegal_rows(decisions.actions, states.masks, states.observations.slot_ptr) | is_broken.any(axis=1)


def decision_bytes(decisions: Decisions) -> NDArray[np.uint8]:
    """Return the bytes [N, B] of actions and log-probabilities."""
    parts = (np.ascontiguousarray(part) for part in (decisions.actions, decisions.log_probs))
    return np.concatenate([part.view(np.uint8).reshape(len(part), -1) for part in parts], axis=1)


def count_failures(cases: Iterator[tuple[str, int, Callable[[], NDArray[np.bool_]]]]) -> Probe:
    """Return how many of all examined states a candidate fails, and the first case in which it does.

    Args:
        cases: Per case its name, its number of states, and a function that returns which of them fail. All of them do
            if it raises an error.
    """
    failed, total, first = 0, 0, ""
    for name, count, run in cases:
        try:
            bad, why = int(run().sum()), ""
        except (SimicError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
            bad, why = count, f" ({type(error).__name__}: {str(error)[:200]})"
        failed, total = failed + bad, total + count
        first = first or (f"{name}: {bad} of {count}{why}" if bad else "")
    return Probe(value=float(failed), count=total, detail=first)


def none_fail(case: Case, name: str, what: str) -> Criterion:
    """Return the criterion that nothing of what a probe counted failed; a probe that examined nothing is missing."""
    probe = case.report.probes.get(name)
    if probe is None or not probe.count:
        return line(name, None, "<=", 0.0, f"{what}; nothing was examined")
    first = f"; first {probe.detail}" if probe.detail else ""
    return line(name, probe.value, "<=", 0.0, f"{what}, of {probe.count}{first}")
