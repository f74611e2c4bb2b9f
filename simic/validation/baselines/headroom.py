"""Headroom: what each single seed gains over never growing, by family, with an estimate that the choice cannot inflate.

The best of many plans looks better than it is on the hosts that chose it. So one half of the hosts chooses, and the
other half measures. Both are keys of the training split in the order of the draw; keys are hashed into hosts. The best
plan of each single host is chosen by its validation accuracy and measured by its test accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from simic.contracts.controllers import ControllerSpec, Plan
from simic.contracts.errors import ConfigError
from simic.contracts.results.headroom import FEWEST_HOSTS, FamilyHeadroom, Headroom, PlanGain
from simic.contracts.results.trials import Estimate
from simic.contracts.rewards import RewardConfig
from simic.contracts.settings.run import TrialConfig, WorldConfig
from simic.runtime.progress import NoProgress, Progress
from simic.runtime.seeds import derive
from simic.validation.baselines.candidates import single_seeds_of
from simic.validation.baselines.halving import EpisodeRunner
from simic.validation.trials import paired_estimate

__all__ = ["measure_headroom"]

_KEYS = 2**30
"""Upper bound of the first key."""


def measure_headroom(
    world: WorldConfig, reward: RewardConfig, hosts: int, *, seed: int = 0, progress: Progress | None = None
) -> Headroom:
    """Grow ``hosts`` hosts of each family under every plan of one seed, and without any; ``seed`` draws the hosts.

    Raises:
        ConfigError: for fewer than ``FEWEST_HOSTS`` hosts.
    """
    if hosts < FEWEST_HOSTS:
        raise ConfigError(f"headroom needs {FEWEST_HOSTS} or more hosts per family, found {hosts}")
    plans = single_seeds_of(world)
    runner = EpisodeRunner(world, reward, derive(seed, "headroom", "hosts") % _KEYS, progress or NoProgress())
    entered = runner.enter(ControllerSpec(name="schedule", plan=plan) for plan in plans)
    families = range(len(runner.families))
    scores = runner.run("headroom", set(product(entered, families)), hosts)
    gains = np.array([[scores.of(candidate, family) for candidate in entered] for family in families])
    tested = np.array([[scores.tested(candidate, family) for candidate in entered] for family in families])
    by_family = {name: _headroom(plans, gains[[row]], tested[[row]], seed) for row, name in enumerate(runner.families)}
    rest = np.array([_chosen(own[None])[1][0] for own in gains])
    return Headroom(
        set=world.set,
        horizon=world.horizon,
        reward=reward,
        seed=seed,
        host_keys=runner.reset(),
        families=by_family,
        all_families=_headroom(plans, gains, tested, seed),
        plan_per_family=_estimate(rest, seed),
    )


def _headroom(
    plans: Sequence[Plan], gains: NDArray[np.float64], tested: NDArray[np.float64], seed: int
) -> FamilyHeadroom:
    """Return the headroom over families from the gains [families, plans, hosts], and those on test data."""
    best, rest, when_chosen = _chosen(gains)
    measured = [PlanGain(plan=plan, over_wait=_estimate(gains[:, row], seed)) for row, plan in enumerate(plans)]
    return FamilyHeadroom(
        plans=sorted(measured, key=lambda gain: -gain.over_wait.mean),
        chosen=Plan() if best is None else plans[best],
        when_chosen=when_chosen,
        over_wait=_estimate(rest, seed),
        hindsight=_estimate(_hindsight(gains, tested), seed),
    )


def _chosen(gains: NDArray[np.float64]) -> tuple[int | None, NDArray[np.float64], float]:
    """Return the best plan on the first half of the hosts, its gains on the others [families, hosts], its mean there.

    The plan is None, and its gains are 0, if no plan gains anything.
    """
    first = gains.shape[2] // 2
    means = gains[:, :, :first].mean(axis=(0, 2))
    best = int(means.argmax())
    if means[best] <= 0.0:
        return None, np.zeros_like(gains[:, 0, first:]), 0.0
    return best, gains[:, best, first:], float(means[best])


def _hindsight(gains: NDArray[np.float64], tested: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the gain on test data [families, hosts] of the plan with the greatest gain of each host, if positive."""
    best = gains.argmax(axis=1, keepdims=True)
    grows = np.take_along_axis(gains, best, axis=1) > 0.0
    return np.where(grows, np.take_along_axis(tested, best, axis=1), 0.0)[:, 0]


def _estimate(gains: NDArray[np.float64], seed: int) -> Estimate:
    """Return the mean gain over [families, hosts]; with the spread of hosts within their family."""
    labels = [str(row) for row, own in enumerate(gains) for _ in own]
    return paired_estimate(gains.ravel(), np.zeros(gains.size), TrialConfig(), seed, labels)
