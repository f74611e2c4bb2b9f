"""Search for the best fixed plans: one for all hosts, and one per family for the oracle.

Successive halving (Jamieson and Talwalkar 2016, arXiv:1502.07943) over plans with at most one seed, on hosts of the
training split alone. Every rung grows new hosts and keeps the plans with the best mean difference to never growing
so far; the hosts of the last rung alone choose among those left, never growing always among them. The differences in
the book are measured on hosts that selected nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.contracts.config import RewardConfig, WorldConfig
from simic.contracts.controllers import ControllerSpec, Plan, PlanBook, PlannedSeed
from simic.contracts.splits import Split
from simic.contracts.state import HostIdentity
from simic.controllers.schedule import ScheduleController
from simic.hosts.anatomy import SLOTS
from simic.hosts.catalogue import blueprint_names
from simic.hosts.keys import draw_keys, host_set, identify
from simic.runtime.code_version import tree_digest
from simic.runtime.parallel import run_jobs, worker_count
from simic.trust.canonical import digest_of
from simic.validation.episodes import Episodes, TrialJob, grow_with

__all__ = ["Rung", "SearchSettings", "plans_in_reach", "search_plans", "write_book"]

GERMINATION_EPOCHS = (0, 1, 2, 4)
RAMP_EPOCHS = (0, 3)
_NEVER = 0
"""Index of the plan without a seed."""
OnDone = Callable[[Episodes], None]


class Rung(NamedTuple):
    """One round of the search."""

    plans: int
    """Survivors that take part, for each family and for all hosts together."""
    hosts: int
    """New hosts per family."""


@dataclass(frozen=True)
class SearchSettings:
    """How thorough the search is; the defaults grow about 13,000 episodes."""

    rungs: tuple[Rung, ...] = (Rung(1_000, 4), Rung(36, 8), Rung(12, 24), Rung(4, 72))
    confirm_hosts: int = 100
    """New hosts per family on which the winners' differences are measured."""
    first_key: int = 2**30
    """Where the search begins to draw training hosts."""


@dataclass(frozen=True)
class _Job:
    """Hosts, possibly repeated, each under a plan of its own."""

    plans: tuple[Plan, ...]
    trial: TrialJob


class _Scores:
    """Differences to never growing of (plan, family), as far as they are known."""

    def __init__(self, plans: int, families: int) -> None:
        self._sum = np.zeros((plans, families))
        self._count = np.zeros((plans, families), dtype=np.int64)

    def add(self, plan: int, family: int, differences: NDArray[np.float64]) -> None:
        self._sum[plan, family] += differences.sum()
        self._count[plan, family] += len(differences)

    def plus(self, other: _Scores) -> _Scores:
        """Both together."""
        total = _Scores(*self._sum.shape)
        total._sum = self._sum + other._sum
        total._count = self._count + other._count
        return total

    def best(self, plans: Iterable[int], families: Sequence[int], keep: int) -> list[int]:
        """The best ``keep`` plans by the mean over ``families``; equals go by index, so simpler plans first."""
        return sorted(plans, key=lambda plan: (-self.mean(plan, families), plan))[:keep]

    def mean(self, plan: int, families: Sequence[int]) -> float:
        """Over families of equal weight."""
        columns = list(families)
        return float((self._sum[plan, columns] / np.maximum(1, self._count[plan, columns])).mean())


def plans_in_reach(horizon: int) -> list[Plan]:
    """Never growing, then every single seed: blueprint x slot x germination epoch x ramp."""
    seeds = product(blueprint_names(), range(SLOTS), GERMINATION_EPOCHS, RAMP_EPOCHS)
    return [
        Plan(seeds=[]),
        *(
            Plan(seeds=[PlannedSeed(epoch=epoch, slot=slot, blueprint=blueprint, alpha_speed=ramp)])
            for blueprint, slot, epoch, ramp in seeds
            if epoch < horizon
        ),
    ]


def search_plans(
    world: WorldConfig,
    reward: RewardConfig,
    settings: SearchSettings | None = None,
    *,
    on_done: OnDone | None = None,
) -> PlanBook:
    """The book of ``world.set``; equal arguments give equal books on one machine."""
    settings = settings or SearchSettings()
    search = _Search(world, reward, settings.first_key, on_done)
    everywhere = range(len(search.families))
    groups: list[Sequence[int]] = [[family] for family in everywhere] + [everywhere]
    survivors = [list(range(len(search.plans)))] * len(groups)
    scores = latest = search.new_scores()
    for rung in settings.rungs:
        survivors = [scores.best(own, group, rung.plans) for own, group in zip(survivors, groups, strict=True)]
        latest = search.new_scores()
        search.play(latest, _pairs(survivors, groups), rung.hosts)
        scores = scores.plus(latest)
    # By the last hosts alone: whoever came so far was helped by luck on the earlier ones.
    winners = [latest.best({*own, _NEVER}, group, 1)[0] for own, group in zip(survivors, groups, strict=True)]
    fresh = search.new_scores()
    search.play(fresh, _pairs([[winner] for winner in winners], groups), settings.confirm_hosts)
    *own, blind = winners
    by_family = dict(zip(search.families, own, strict=True))
    return PlanBook(
        set=world.set,
        host_keys=search.used,
        candidates=len(search.plans),
        world_digest=_world_digest(world, reward),
        blind=search.plans[blind],
        blind_over_wait=round(fresh.mean(blind, everywhere), 4),
        by_family={name: search.plans[plan] for name, plan in by_family.items()},
        family_over_wait={
            name: round(fresh.mean(plan, [family]), 4) for family, (name, plan) in enumerate(by_family.items())
        },
    )


def write_book(book: PlanBook, path: Path) -> None:
    """As pretty JSON with sorted keys; appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.tmp")
    partial.write_text(_pretty(book), "utf-8")
    partial.replace(path)


def _pairs(survivors: Sequence[Sequence[int]], groups: Sequence[Sequence[int]]) -> set[tuple[int, int]]:
    """(plan, family) to play: every survivor of a group on the families of the group."""
    return {
        (plan, family)
        for own, group in zip(survivors, groups, strict=True)
        for plan in own
        for family in group
        if plan != _NEVER
    }


class _Search:
    """What every rung shares: the plans, the world, and which hosts are used up."""

    def __init__(self, world: WorldConfig, reward: RewardConfig, first_key: int, on_done: OnDone | None) -> None:
        self.plans = plans_in_reach(world.horizon)
        self.families = host_set(world.set).families
        self.used: list[int] = []
        self._world, self._reward, self._on_done = world, reward, on_done
        self._next_key = first_key

    def new_scores(self) -> _Scores:
        """Nothing known yet."""
        return _Scores(len(self.plans), len(self.families))

    def play(self, scores: _Scores, pairs: set[tuple[int, int]], hosts_per_family: int) -> None:
        """Grow new hosts under all pairs and under no plan, and add the differences."""
        hosts = self._draw(hosts_per_family)
        # Sorted by plan: hosts of one chunk then share a blueprint and a slot, which trains fastest.
        played = [(_NEVER, family) for family in range(len(self.families))] + sorted(pairs)
        returns = self._grow([(plan, host) for plan, family in played for host in hosts[family]])
        values: dict[tuple[int, int], NDArray[np.float64]] = {}
        for plan, family in played:
            values[plan, family], returns = returns[:hosts_per_family], returns[hosts_per_family:]
        for plan, family in sorted(pairs):
            scores.add(plan, family, values[plan, family] - values[_NEVER, family])

    def _draw(self, hosts_per_family: int) -> list[list[HostIdentity]]:
        """Training hosts that no rung has seen, by family."""
        keys = draw_keys(self._world.set, Split.TRAIN, hosts_per_family * len(self.families), self._next_key)
        self.used += keys
        self._next_key = max(keys) + 1
        hosts = identify(self._world.set, keys)
        return [[host for host in hosts if host.family == name] for name in self.families]

    def _grow(self, cases: Sequence[tuple[int, HostIdentity]]) -> NDArray[np.float64]:
        """Undiscounted return of every (plan, host), in order."""
        jobs = []
        for start in range(0, len(cases), self._world.chunk):
            chunk = cases[start : start + self._world.chunk]
            hosts = tuple(host for _, host in chunk)
            trial = TrialJob("schedule", ControllerSpec(name="schedule"), hosts, self._world, self._reward, seed=0)
            jobs.append(_Job(tuple(self.plans[plan] for plan, _ in chunk), trial))
        done = run_jobs(_grow_planned, jobs, worker_count(self._world.workers), self._on_done)
        return np.concatenate([episodes.returns for episodes in done])


def _grow_planned(job: _Job) -> Episodes:
    return grow_with(ScheduleController("schedule", job.plans), job.trial)


def _world_digest(world: WorldConfig, reward: RewardConfig) -> str:
    package = Path(__file__).resolve().parents[1]
    return digest_of(
        {
            "hosts": tree_digest(package, ("hosts",)),
            "set": world.set,
            "horizon": world.horizon,
            "reward": reward.model_dump(mode="json"),
        }
    )


def _pretty(book: PlanBook) -> str:
    return json.dumps(book.model_dump(mode="json"), indent=2, sort_keys=True) + "\n"
