"""Successive halving over controllers (Jamieson and Talwalkar 2016, arXiv:1502.07943), paired with never growing.

Every rung grows new hosts and keeps the candidates with the best mean difference to never growing so far, or in this
rung if variations joined it. Only the hosts of the last rung rank the remaining candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.contracts.actions import HEADS
from simic.contracts.batches import Decisions, Masks, Observations
from simic.contracts.controllers import ControllerSpec
from simic.contracts.names import WAIT
from simic.contracts.results.trials import Estimate
from simic.contracts.rewards import RewardConfig
from simic.contracts.settings.run import TrialConfig, WorldConfig
from simic.contracts.splits import Split
from simic.contracts.state import HostIdentity
from simic.controllers.factory import make
from simic.hosts.host_sets import draw_keys, host_set, identify
from simic.runtime.process_pool import run_jobs, worker_count
from simic.runtime.progress import Progress
from simic.validation.episodes import Episodes, TrialJob, join, run_with
from simic.validation.trials import paired_estimate

__all__ = ["NO_GROWTH", "EpisodeRunner", "Rung", "Scores", "halve", "pairs_of"]

NO_GROWTH = 0
"""Index of the candidate ``wait``."""
Differences = NDArray[np.float64]
Vary = Callable[[int], int]
"""Function that maps a candidate to a variation of it."""


class Rung(NamedTuple):
    """One round of successive halving."""

    candidates: int
    """Number of survivors that take part, in each group."""
    hosts: int
    """Number of new hosts per family."""
    variations: int = 0
    """Number of variations of each survivor that join."""


class Scores:
    """Differences in points to never growing, by candidate, family and host, as far as candidates have grown hosts.

    float64 [hosts, 2] per (candidate, family), in the order of the draw: differences of returns, and of returns on test
    data. The latter have the final test accuracy in place of the validation accuracy, so a choice by returns does not
    inflate them.
    """

    def __init__(self, values: Mapping[tuple[int, int], Differences] | None = None) -> None:
        self._values = dict(values or {})

    def plus(self, other: Scores) -> Scores:
        """Return the concatenated differences of both."""
        total = dict(self._values)
        for case, more in other._values.items():
            total[case] = np.concatenate([total[case], more]) if case in total else more
        return Scores(total)

    def of(self, candidate: int, family: int) -> Differences:
        """Return [hosts] in the order of the draw; raise KeyError for a candidate that did not take part."""
        return self._values[candidate, family][:, 0]

    def tested(self, candidate: int, family: int) -> Differences:
        """Return the differences on test data, [hosts], as ``of`` does."""
        return self._values[candidate, family][:, 1]

    def mean(self, candidate: int, families: Sequence[int]) -> float:
        """Return the mean over families of equal weight; never growing has 0."""
        if candidate == NO_GROWTH:
            return 0.0
        return float(np.mean([self.of(candidate, family).mean() for family in families]))

    def best(self, candidates: Iterable[int], families: Sequence[int], keep: int) -> list[int]:
        """Return the best ``keep`` candidates by mean; ties go by index, so simpler candidates come first."""
        return sorted(set(candidates), key=lambda candidate: (-self.mean(candidate, families), candidate))[:keep]

    def estimate(self, candidate: int, families: Sequence[int], seed: int) -> Estimate:
        """Return the paired difference to never growing over the hosts of the families, with an interval."""
        parts = [self.of(candidate, family) for family in families]
        labels = [str(family) for family, part in zip(families, parts, strict=True) for _ in part]
        differences = np.concatenate(parts)
        estimate = paired_estimate(differences, np.zeros(len(differences)), TrialConfig(), seed, labels)
        rounded = {name: round(getattr(estimate, name), 4) for name in ("mean", "lower", "upper")}
        return estimate.model_copy(update=rounded)


@dataclass(frozen=True)
class _Job:
    """Hosts, possibly repeated, each under its own controller; the spec of the trial is not used."""

    specs: tuple[ControllerSpec, ...]
    which: tuple[int, ...]
    """Index into ``specs`` for each host of the trial."""
    trial: TrialJob


class _Mixed:
    """Controller that passes each host to its own candidate."""

    name = "mixed"
    policy_version: str | None = None

    def __init__(self, job: _Job) -> None:
        which, hosts = np.array(job.which), job.trial.hosts
        own = {index: np.flatnonzero(which == index) for index in sorted(set(job.which))}
        self._parts = [(rows, make(job.specs[index], [hosts[row] for row in rows])) for index, rows in own.items()]

    def decide(self, observations: Observations, masks: Masks, uniforms: NDArray[Any]) -> Decisions:
        """Return one action per host, decided by its controller."""
        actions = np.full((len(observations), len(HEADS)), -1, dtype=np.int16)
        log_probs = np.full(actions.shape, np.nan, dtype=np.float32)
        for rows, controller in self._parts:
            seen, legal = observations.take(rows), masks.take(rows, observations.slot_ptr)
            decided = controller.decide(seen, legal, uniforms[rows])
            actions[rows], log_probs[rows] = decided.actions, decided.log_probs
        return Decisions(actions, log_probs)


class EpisodeRunner:
    """Runs candidates on training hosts of one set; no host is used twice."""

    def __init__(self, world: WorldConfig, reward: RewardConfig, first_key: int, progress: Progress) -> None:
        self.candidates: list[ControllerSpec] = []
        self.families = host_set(world.set).families
        self.used: list[int] = []
        """Keys of the hosts used since the last ``reset``."""
        self._world, self._reward, self._progress = world, reward, progress
        self._next_key = first_key
        self._known: dict[str, int] = {}
        self.enter([ControllerSpec(name=WAIT)])

    def enter(self, specs: Iterable[ControllerSpec]) -> list[int]:
        """Register candidates and return their indices; a known one keeps its index."""
        indices = []
        for spec in specs:
            name = spec.model_dump_json()
            if name not in self._known:
                self._known[name] = len(self.candidates)
                self.candidates.append(spec)
            indices.append(self._known[name])
        return indices

    def reset(self) -> list[int]:
        """Return the keys used since the last call, and forget them."""
        used, self.used = self.used, []
        return used

    def run(self, label: str, pairs: Iterable[tuple[int, int]], hosts_per_family: int) -> Scores:
        """Run all (candidate, family) pairs and ``wait`` on new hosts; ``label`` names the progress bar."""
        return self.run_on(self.draw(hosts_per_family), label, pairs)

    def run_on(self, hosts: Sequence[Sequence[HostIdentity]], label: str, pairs: Iterable[tuple[int, int]]) -> Scores:
        """Run all (candidate, family) pairs and ``wait`` on the given hosts of each family."""
        # Sorted by candidate: hosts of one chunk then share a blueprint and a slot, which trains fastest.
        run_pairs = sorted({*pairs, *((NO_GROWTH, family) for family in range(len(self.families)))})
        returns = self._grow(label, [(candidate, host) for candidate, family in run_pairs for host in hosts[family]])
        values = dict(zip(run_pairs, np.split(returns, len(run_pairs)), strict=True))
        return Scores({case: values[case] - values[NO_GROWTH, case[1]] for case in run_pairs})

    def draw(self, hosts_per_family: int) -> list[list[HostIdentity]]:
        """Return unused training hosts by family."""
        keys = draw_keys(self._world.set, Split.TRAIN, hosts_per_family * len(self.families), self._next_key)
        self.used += keys
        self._next_key = max(keys) + 1
        return self.by_family(keys)

    def by_family(self, keys: Sequence[int]) -> list[list[HostIdentity]]:
        """Return the hosts of given keys by family."""
        hosts = identify(self._world.set, keys)
        return [[host for host in hosts if host.family == name] for name in self.families]

    def _grow(self, label: str, cases: Sequence[tuple[int, HostIdentity]]) -> NDArray[np.float64]:
        """Return the undiscounted returns of every (candidate, host), in order: [cases, 2] as in ``Scores``."""
        jobs = [
            self._job(cases[start : start + self._world.chunk]) for start in range(0, len(cases), self._world.chunk)
        ]
        with self._progress.task(label, len(cases)) as advance:
            done = run_jobs(
                _grow_mixed,
                jobs,
                worker_count(self._world.processes),
                lambda episodes: advance(len(episodes.returns)),
            )
        grown = join(done)
        return np.stack([grown.returns, grown.test_returns], axis=1)

    def _job(self, chunk: Sequence[tuple[int, HostIdentity]]) -> _Job:
        present = sorted({candidate for candidate, _ in chunk})
        hosts = tuple(host for _, host in chunk)
        trial = TrialJob("search", ControllerSpec(name=WAIT), hosts, self._world, self._reward, seed=0)
        specs = tuple(self.candidates[candidate] for candidate in present)
        return _Job(specs, tuple(present.index(candidate) for candidate, _ in chunk), trial)


def _grow_mixed(job: _Job) -> Episodes:
    return run_with(_Mixed(job), job.trial)


def pairs_of(fields: Iterable[Iterable[int]], groups: Iterable[Sequence[int]]) -> set[tuple[int, int]]:
    """Return the (candidate, family) pairs to run: every candidate of a group on the families of the group."""
    return {
        (candidate, family)
        for own, group in zip(fields, groups, strict=True)
        for candidate in own
        for family in group
        if candidate != NO_GROWTH
    }


def halve(
    runner: EpisodeRunner,
    label: str,
    fields: Sequence[Sequence[int]],
    groups: Sequence[Sequence[int]],
    rungs: Sequence[Rung],
    *,
    anchor: int | None = None,
    vary: Vary | None = None,
) -> list[list[int]]:
    """Rank the ``fields`` of candidates, one for each group of families; best first.

    Only the last hosts rank, because candidates that were kept so far were partly lucky on the earlier ones; so do the
    hosts of a rung that variations joined, which did not grow on earlier ones. ``anchor`` always reaches the last rung.
    """
    survivors = [list(own[: rungs[0].candidates]) for own in fields]
    scores = latest = Scores()
    for number, rung in enumerate(rungs, 1):
        if number > 1:
            known = latest if rungs[number - 2].variations else scores
            survivors = [known.best(own, group, rung.candidates) for own, group in zip(survivors, groups, strict=True)]
        if vary is not None:
            for own in survivors:
                own += [vary(old) for old in list(own) for _ in range(rung.variations)]
        if anchor is not None and number == len(rungs):
            survivors = [[*own, anchor] if own else [] for own in survivors]
        latest = runner.run(f"{label} {number}/{len(rungs)}", pairs_of(survivors, groups), rung.hosts)
        scores = scores.plus(latest)
    return [latest.best(own, group, len(own)) for own, group in zip(survivors, groups, strict=True)]
