"""Episodes of one controller on a chunk of hosts, shared by trials, searches and probes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simic.contracts.actions import Head, Op
from simic.contracts.batches import HEAD_INDEX, OP_INDEX, STAGE_INDEX, STAGES, Decisions, Masks, Observations, action_of
from simic.contracts.controllers import ControllerSpec
from simic.contracts.episode import EpisodeRecord, EpochRecord, SlotRecord
from simic.contracts.errors import IllegalActionError
from simic.contracts.lifecycle import SeedStage
from simic.contracts.rewards import DEFAULT_FLAGS, FlagConfig, RewardConfig
from simic.contracts.settings.run import WorldConfig
from simic.contracts.state import HostIdentity
from simic.controllers.factory import make
from simic.controllers.learned_controller import LearnedController
from simic.controllers.protocol import Controller
from simic.hosts.action_masks import check_actions
from simic.hosts.host_sets import layers_of
from simic.hosts.mixed_ensemble import ensemble_of
from simic.hosts.rollout import Growing, Step, rollout
from simic.numerics.rewards import basic_rewards

__all__ = [
    "Effort",
    "Episodes",
    "KeptSeed",
    "Reporter",
    "Scores",
    "TrialJob",
    "chunked",
    "episode_record",
    "epoch_record",
    "illegal_rows",
    "join",
    "returns_at",
    "run_episodes",
    "run_with",
    "score",
    "step_flags",
    "steps_of",
]

_WITH_SEED = [
    STAGE_INDEX[stage]
    for stage in SeedStage
    if stage not in {SeedStage.DORMANT, SeedStage.PRUNED, SeedStage.EMBARGOED, SeedStage.RESETTING}
]
"""Stages of live and fossilised seeds."""


class Reporter(Protocol):
    """Takes the finished episodes of one arm on a chunk of hosts; plain data that another process can take."""

    def __call__(
        self,
        arm: str,
        controller: Controller,
        hosts: Sequence[HostIdentity],
        world: WorldConfig,
        steps: Sequence[Step],
        is_legal: NDArray[np.bool_],
    ) -> None:
        """Take the steps of all hosts; ``is_legal`` [N] is false where WAIT replaced an illegal action."""


@dataclass(frozen=True)
class TrialJob:
    """A chunk of hosts for one controller; plain data that another process can take."""

    controller: str
    """Name of the controller's row."""
    spec: ControllerSpec
    hosts: tuple[HostIdentity, ...]
    world: WorldConfig
    reward: RewardConfig
    seed: int
    """Seed of the controller's random numbers."""
    reporter: Reporter | None = None
    """Takes the episodes when they have ended, if they are to land."""
    flags: FlagConfig = DEFAULT_FLAGS


class KeptSeed(NamedTuple):
    """A seed of the network that an episode ended with."""

    slot: int
    number: int
    """Number of seeds that the slot had held with this one; it decides how the seed is born."""
    blueprint: str
    alpha: float


class Effort(NamedTuple):
    """How much was computed to grow each of N hosts, [N] each, summed over all episodes that were grown on it.

    A count of work in place of a clock, so that controllers are compared on any machine (``compute``).
    """

    episodes: NDArray[np.int64]
    """More than 1 under a controller that tries hosts before it decides."""
    seed_epochs: NDArray[np.int64]
    """Parameters of seeds alive or fossilised, summed over epochs."""
    decisions: NDArray[np.int64]
    """Steps, at each of which the controller was asked for an action."""
    products: NDArray[np.int64]
    """Multiply-adds of these decisions in the layers of a policy; 0 without a policy."""
    left_out: NDArray[np.int64]
    """Evaluations of the host without one of its seeds, whose contributions were recorded."""
    probes: NDArray[np.int64]
    """Gradients of a germinated seed on one batch."""


@dataclass(frozen=True)
class Scores:
    """How N finished episodes went, [N] each, in the order of their hosts; computed from their steps alone.

    `simic watch` scores its host as a trial does. Accuracies are shares in [0, 1], of the committed network.
    """

    returns: NDArray[np.float64]
    """Undiscounted returns in points."""
    validation_accuracy: NDArray[np.float64]
    """Accuracy of the committed network."""
    test_accuracy: NDArray[np.float64]
    """The same on test data; NaN if it is not known."""
    committed_parameters: NDArray[np.int64]
    """Of fossilised seeds, at the end."""
    seed_epochs: NDArray[np.int64]
    """Parameters of seeds alive or fossilised, summed over the epochs of the episode."""
    rents: NDArray[np.float64]
    """Points of rent in the return."""
    panicked: NDArray[np.bool_]
    """Whether the governor stepped in."""
    validation_loss: NDArray[np.float64]
    """Loss of the committed network."""
    test_returns: NDArray[np.float64]
    """Returns with the final test accuracy in place of the validation accuracy, so no choice by returns inflates them.
    """


@dataclass(frozen=True)
class Episodes(Scores):
    """The scores of episodes, and what only their run knows."""

    illegal_actions: NDArray[np.int64]
    """[N]: illegal decisions, which were replaced by WAIT."""
    kept: NDArray[np.object_]
    """[N]: per host a tuple of ``KeptSeed``, in the order of fossilisation."""
    flags: NDArray[np.int64]
    """[N, 3]: steps after which a contribution was measured, those flagged as hacking, those flagged as ransomware."""
    effort: NDArray[np.int64]
    """[N, 6]: columns of ``Effort``."""

    def take(self, rows: NDArray[np.int64]) -> Episodes:
        """Return the episodes of ``rows``, in that order."""
        return Episodes(**{name: column[rows] for name, column in vars(self).items()})


def chunked(hosts: Sequence[HostIdentity], size: int) -> Iterator[NDArray[np.int64]]:
    """Yield the rows of chunks of at most ``size`` hosts; those of equal layers are neighbours, in their order."""
    rows = np.array(sorted(range(len(hosts)), key=lambda row: layers_of(hosts[row])), dtype=np.int64)
    return (rows[start : start + size] for start in range(0, len(hosts), size))


def run_episodes(job: TrialJob) -> Episodes:
    """Run all episodes of a job; illegal actions are counted and replaced by WAIT."""
    return run_with(make(job.spec, job.hosts), job)


def run_with(controller: Controller, job: TrialJob) -> Episodes:
    """Run all episodes of a job under a given controller; illegal actions are counted and replaced by WAIT."""
    guarded = _LegalityGuard(controller, len(job.hosts))
    kept = _KeptSeeds(len(job.hosts))
    flags, efforts = _Flags(len(job.hosts), job.flags), _Efforts(controller, len(job.hosts))
    steps, reported = efforts.watch(flags.watch(kept.watch(_steps(guarded, job)))), list[Step]()
    if job.reporter is not None:
        steps = _noted(steps, reported)
    scores = score(steps, len(job.hosts), job.world, job.reward)
    if job.reporter is not None:
        job.reporter(job.controller, controller, job.hosts, job.world, reported, guarded.illegal == 0)
    return Episodes(
        **vars(scores),
        illegal_actions=guarded.illegal,
        kept=kept.seeds,
        flags=flags.counts,
        effort=efforts.of(scores.seed_epochs),
    )


def steps_of(controller: Controller, job: TrialJob, ensemble: Growing | None = None) -> Iterator[Step]:
    """Yield the steps of a job; illegal actions are replaced by WAIT. ``ensemble`` holds its hosts, if they exist."""
    return _steps(_LegalityGuard(controller, len(job.hosts)), job, ensemble)


def _steps(guarded: _LegalityGuard, job: TrialJob, ensemble: Growing | None = None) -> Iterator[Step]:
    grown = ensemble_of(job.hosts, job.world) if ensemble is None else ensemble
    return rollout(grown, guarded.decide, job.seed)


def _noted(steps: Iterable[Step], into: list[Step]) -> Iterator[Step]:
    for step in steps:
        into.append(step)
        yield step


class _LegalityGuard:
    """Wraps a controller: counts its illegal actions and replaces them by WAIT, so that a trial can finish."""

    def __init__(self, controller: Controller, hosts: int) -> None:
        self._controller = controller
        self.illegal = np.zeros(hosts, dtype=np.int64)
        """[N]: illegal decisions so far."""

    def decide(self, observations: Observations, masks: Masks, uniforms: NDArray[np.float64]) -> Decisions:
        """Return the controller's decisions, with WAIT for illegal ones."""
        decisions = self._controller.decide(observations, masks, uniforms)
        bad = illegal_rows(decisions.actions, masks, observations.slot_ptr)
        self.illegal += bad
        if not bad.any():
            return decisions
        actions, log_probs = decisions.actions.copy(), decisions.log_probs.copy()
        actions[bad], log_probs[bad] = -1, np.nan
        actions[bad, HEAD_INDEX[Head.OP]] = OP_INDEX[Op.WAIT]
        return Decisions(actions, log_probs)


class _KeptSeeds:
    """Notes the seeds that are fossilised while steps pass by."""

    def __init__(self, hosts: int) -> None:
        self.seeds = np.empty(hosts, dtype=np.object_)
        """[N]: as ``Episodes.kept``."""
        self.seeds[:] = [()] * hosts

    def watch(self, steps: Iterable[Step]) -> Iterator[Step]:
        """Yield the steps as they are."""
        for step in steps:
            keeps = step.live & (step.decisions.actions[:, HEAD_INDEX[Head.OP]] == OP_INDEX[Op.FOSSILIZE])
            for row in np.flatnonzero(keeps).tolist():
                self.seeds[row] = (*self.seeds[row], _kept_seed(step, row))
            yield step


class _Flags:
    """Counts flagged steps while they pass by."""

    def __init__(self, hosts: int, thresholds: FlagConfig) -> None:
        self._thresholds = thresholds
        self.counts = np.zeros((hosts, 3), dtype=np.int64)
        """[N, 3]: as ``Episodes.flags``."""

    def watch(self, steps: Iterable[Step]) -> Iterator[Step]:
        """Yield the steps as they are."""
        start: NDArray[np.float64] | None = None
        for step in steps:
            if start is None:
                start = step.observations.system["validation_accuracy"].astype(np.float64)
            self.counts[step.live] += step_flags(step.after, start, self._thresholds)[step.live]
            yield step


class _Efforts:
    """Counts what is computed on each host while steps pass by, but for the training of seeds."""

    def __init__(self, controller: Controller, hosts: int) -> None:
        self._policy = controller if isinstance(controller, LearnedController) else None
        self.decisions, self.products, self.left_out, self.probes = np.zeros((4, hosts), dtype=np.int64)
        """[N] each, as in ``Effort``."""

    def watch(self, steps: Iterable[Step]) -> Iterator[Step]:
        """Yield the steps as they are; a host's graph keeps its size."""
        each = np.zeros(len(self.decisions), dtype=np.int64)
        for number, step in enumerate(steps):
            if not number and self._policy is not None:
                each = self._policy.multiply_adds(step.observations)
            self.decisions += step.live
            self.products += each * step.live
            self.left_out += step.live * _count(step.after, step.after.slots["contribution_epochs"] == 0)
            self.probes += step.live * _probed(step)
            yield step

    def of(self, seed_epochs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return ``Episodes.effort`` of the episodes that these steps were, with their ``seed_epochs`` [N]."""
        counted = (self.decisions, self.products, self.left_out, self.probes)
        return np.stack(Effort(np.ones_like(self.decisions), seed_epochs, *counted), axis=1)


def _kept_seed(step: Step, row: int) -> KeptSeed:
    """Return the seed that host ``row`` fossilises in a step."""
    outcome = step.outcome
    slot, number = map(int, str(outcome.seed_ids[row]).split("/"))
    alpha = float(step.after.slots["alpha"][step.after.slot_ptr[row] + slot])
    return KeptSeed(slot, number, str(outcome.blueprint_ids[row]), alpha)


def illegal_rows(actions: NDArray[np.int16], masks: Masks, slot_ptr: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return bool [N]: illegal actions of [N, A]; hosts are checked one by one only if any is illegal."""
    rows = np.arange(len(actions))
    if _is_legal(actions, masks, slot_ptr):
        return np.zeros(len(rows), dtype=np.bool_)
    own = ((row, slot_ptr[row : row + 2] - slot_ptr[row]) for row in rows)
    return np.array(
        [not _is_legal(actions[row : row + 1], masks.take(rows[row : row + 1], slot_ptr), ptr) for row, ptr in own]
    )


def _is_legal(actions: NDArray[np.int16], masks: Masks, slot_ptr: NDArray[np.int64]) -> bool:
    try:
        check_actions(actions, masks, slot_ptr, np.arange(len(masks.op)))
    except IllegalActionError:
        return False
    return True


def score(steps: Iterable[Step], hosts: int, world: WorldConfig, reward: RewardConfig) -> Scores:
    """Return the returns and final measurements of finished episodes."""
    returns = np.zeros(hosts)
    final = {name: np.full(hosts, np.nan) for name in ("validation_accuracy", "test_accuracy", "validation_loss")}
    committed, seed_epochs = np.zeros((2, hosts), dtype=np.int64)
    panicked = np.zeros(hosts, dtype=np.bool_)
    for step in steps:
        outcome, live = step.outcome, step.live
        panic = np.array([event is not None for event in outcome.governor])
        ended = live & outcome.terminated
        after = np.where(ended, outcome.committed_validation_accuracy, outcome.validation_accuracy_after)
        r_t = np.zeros(hosts)
        r_t[live] = basic_rewards(
            reward,
            horizon=world.horizon,
            accuracy_before=outcome.validation_accuracy_before[live],
            accuracy_after=after[live],
            rent_parameters=outcome.rent_parameters[live],
            governor=panic[live],
        )
        returns += r_t  # summed per step, so that the bits do not depend on the other hosts
        seed_epochs[live] += outcome.rent_parameters[live]
        panicked |= live & panic
        final["validation_accuracy"][ended] = outcome.committed_validation_accuracy[ended]
        final["test_accuracy"][ended] = outcome.test_accuracy[ended]
        final["validation_loss"][ended] = outcome.validation_loss_after[ended]
        committed[ended] = outcome.committed_parameters[ended]
    rents = reward.rent * seed_epochs / reward.rent_parameters / world.horizon
    return Scores(
        returns=returns,
        **final,
        committed_parameters=committed,
        seed_epochs=seed_epochs,
        rents=rents,
        panicked=panicked,
        test_returns=returns + reward.accuracy_scale * (final["test_accuracy"] - final["validation_accuracy"]),
    )


def _probed(step: Step) -> NDArray[np.int64]:
    """Return [N]: seeds whose gradient is probed in a step, those that germinate and those still waiting to train."""
    germinates = step.decisions.actions[:, HEAD_INDEX[Head.OP]] == OP_INDEX[Op.GERMINATE]
    waiting = step.observations.slots["stage"] == STAGE_INDEX[SeedStage.GERMINATED]
    probed: NDArray[np.int64] = germinates + _count(step.observations, waiting)
    return probed


def _count(observations: Observations, where: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return [N]: the slots of each host for which ``where`` [S] is true."""
    owners = np.repeat(np.arange(len(observations)), np.diff(observations.slot_ptr))
    counts: NDArray[np.int64] = np.bincount(owners[where], minlength=len(observations)).astype(np.int64)
    return counts


def step_flags(after: Observations, start: NDArray[np.float64], thresholds: FlagConfig) -> NDArray[np.bool_]:
    """Return bool [N, 3]: whether a contribution was measured, is hacking, is ransomware, as curation flags a report.

    Args:
        after: States after the step.
        start: Validation accuracies [N] at the start of the episodes.
        thresholds: Thresholds of the flags.
    """
    own = np.where(np.isin(after.slots["stage"], _WITH_SEED), after.slots["contribution"], np.nan)
    # The empty slots of a host, and a host without slots, contribute nothing.
    largest = np.full(len(start), -np.inf)
    np.fmax.at(largest, np.repeat(np.arange(len(start)), np.diff(after.slot_ptr)), own)
    is_measured = np.isfinite(largest)
    improvement = after.system["validation_accuracy"].astype(np.float64) - start
    is_hacking = is_measured & (improvement > 0) & (largest > thresholds.hacking_ratio * improvement)
    is_ransomware = is_measured & (largest > thresholds.ransom_contribution) & (improvement < -thresholds.ransom_loss)
    return np.stack([is_measured, is_hacking, is_ransomware], axis=1)


def returns_at(returns: ArrayLike, rents: ArrayLike, factor: float) -> NDArray[np.float64]:
    """Return what episodes with ``returns`` [..., N] and ``rents`` [..., N] return at ``factor`` times the rent.

    A return is linear in the price of the rent, so no host grows again; factor 1 gives ``returns``, bit for bit.
    """
    return np.asarray(returns, dtype=np.float64) - (factor - 1.0) * np.asarray(rents, dtype=np.float64)


def join(parts: Sequence[Episodes]) -> Episodes:
    """Concatenate the chunks of one controller."""
    names = [field.name for field in fields(Episodes)]
    return Episodes(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def epoch_record(step: Step, row: int) -> EpochRecord:
    """Return the record of host ``row`` for a step in which it was live.

    If the governor undid the epoch, the observed training and contributions belong to the epoch before, so they are
    left out.
    """
    outcome, system = step.outcome, step.after.system
    event = outcome.governor[row]
    return EpochRecord(
        epoch=step.epoch,
        action=action_of(step.decisions.actions[row], step.observations.blueprints),
        slots=_slots(step.after, row, is_measured=event is None),
        validation_accuracy=system["validation_accuracy"][row],
        validation_loss=system["validation_loss"][row],
        train_loss=None if event is not None else _number(system["train_loss"][row]),
        governor=event,
        mitigation=outcome.mitigation[row],
    )


def episode_record(
    steps: Sequence[Step], row: int, host: HostIdentity, controller: str, scores: Scores
) -> EpisodeRecord:
    """Return the record of host ``row`` of a finished rollout, whose steps have these ``scores``."""
    own = [step for step in steps if step.live[row]]
    first = own[0].observations.system
    return EpisodeRecord(
        host=host,
        controller=controller,
        horizon=first["horizon"][row],
        start_accuracy=first["validation_accuracy"][row],
        epochs=[epoch_record(step, row) for step in own],
        committed_accuracy=scores.validation_accuracy[row],
        test_accuracy=scores.test_accuracy[row],
        committed_parameters=scores.committed_parameters[row],
        return_points=scores.returns[row],
    )


def _slots(after: Observations, row: int, *, is_measured: bool) -> list[SlotRecord]:
    here = slice(int(after.slot_ptr[row]), int(after.slot_ptr[row + 1]))
    names = ("stage", "blueprint", "alpha", "contribution", "contribution_error")
    columns = (after.slots[name][here].tolist() for name in names)
    return [
        SlotRecord(
            stage=STAGES[stage],
            blueprint=None if blueprint < 0 else after.blueprints[blueprint],
            alpha=alpha,
            contribution=_number(contribution) if is_measured else None,
            contribution_error=_number(error) if is_measured else None,
        )
        for stage, blueprint, alpha, contribution, error in zip(*columns, strict=True)
    ]


def _number(value: Any) -> float | None:
    return None if np.isnan(value) else float(value)
