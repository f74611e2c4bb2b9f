"""Measure what limits a choice of one seed per host: who chooses the plan, the host itself or hosts like it.

    python benchmarks/hindsight.py --set varied --hosts 16 --reference 16

Every plan of ``simic plans headroom`` grows on test hosts, those of ``simic trials``, and on training hosts, the
reference. All choices are by the return, which ends with the validation accuracy, and are scored by the return with the
test accuracy in its place, over never growing. Shapes: N hosts, R hosts of the reference, P plans, F features.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.contracts.actions import HEADS
from simic.contracts.controllers import ControllerSpec
from simic.contracts.rewards import RewardConfig
from simic.contracts.settings.run import TrialConfig, WorldConfig
from simic.contracts.splits import Split
from simic.contracts.state import HostIdentity
from simic.controllers.features import encode
from simic.hosts.host_sets import draw_keys, host_set, identify
from simic.hosts.mixed_ensemble import ensemble_of
from simic.numerics.intervals import paired_bootstrap
from simic.validation.baselines.candidates import single_seeds_of
from simic.validation.trials import grow_all

Floats = NDArray[np.float64]
NEIGHBOURS = (1, 4, 16, 64)
PENALTIES = (30.0, 300.0, 3000.0)
DRAWS = 200
"""Draws of noise for the choice by half of the samples."""


class Grown(NamedTuple):
    """Gains of all plans over never growing; plan 0 is never growing."""

    families: NDArray[np.str_]
    by_validation: Floats
    """[N, P]"""
    by_test: Floats
    """[N, P]"""
    features: Floats
    """[N, F]: the observation after the first epoch, on which the first decision that may grow rests."""


def grown(set_name: str, split: Split, count: int, workers: int | None) -> Grown:
    """Grow every plan on ``count`` hosts of each family."""
    world = WorldConfig(set=set_name, workers=workers)
    hosts = identify(set_name, draw_keys(set_name, split, count * len(host_set(set_name).families)))
    specs = {"wait": ControllerSpec(name="wait")}
    for plan in single_seeds_of(world):
        specs[f"schedule {len(specs)}"] = ControllerSpec(name="schedule", plan=plan)
    episodes = grow_all(specs, hosts, world, RewardConfig(), 0, None)
    returns = np.stack([one.returns for one in episodes.values()], axis=1)
    tested = np.stack([one.test_returns for one in episodes.values()], axis=1)
    return Grown(
        np.array([host.family for host in hosts]), returns - returns[:, :1], tested - tested[:, :1],
        np.concatenate([seen(hosts[at : at + 64], world) for at in range(0, len(hosts), 64)]),
    )  # fmt: skip


def seen(hosts: tuple[HostIdentity, ...], world: WorldConfig) -> Floats:
    """Return [N, F]: what a policy sees after the first epoch; all hosts have the same graph."""
    ensemble = ensemble_of(hosts, world)
    actions = np.full((len(hosts), len(HEADS)), -1, dtype=np.int16)
    actions[:, 0] = 0
    ensemble.step(actions)
    graph = encode(ensemble.observe())
    tables = (graph.context_x, graph.slot_x, graph.layer_x)
    return np.concatenate([table.double().numpy().reshape(len(hosts), -1) for table in tables], axis=1)


def choices(ours: Grown, others: Grown) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Yield who chooses, and the plan of each host [N]."""
    yield "the host itself", ours.by_validation.argmax(axis=1)
    yield "all reference hosts", np.full(len(ours.families), others.by_validation.mean(axis=0).argmax())
    regions = {name: others.by_validation[others.families == name].mean(axis=0).argmax() for name in set(ours.families)}
    yield "the reference hosts of its family", np.array([regions[name] for name in ours.families])
    x, y = standardised(ours.features, others.features)
    order = np.square(x[:, None] - y[None]).sum(axis=2).argsort(axis=1, kind="stable")
    for count in NEIGHBOURS:
        nearest = others.by_validation[order[:, :count]].mean(axis=1)
        yield f"the {count} nearest of the reference", nearest.argmax(axis=1)
    for penalty in PENALTIES:
        weights = np.linalg.solve(y.T @ y + penalty * np.eye(y.shape[1]), y.T @ others.by_validation)
        yield f"ridge regression on the reference, penalty {penalty:g}", (x @ weights).argmax(axis=1)


def standardised(ours: Floats, others: Floats) -> tuple[Floats, Floats]:
    """Return both tables of features at the mean and deviation of the reference, with a column of ones."""
    keep = others.std(axis=0) > 1e-6
    mean, deviation = others[:, keep].mean(axis=0), others[:, keep].std(axis=0)
    scaled = (((table[:, keep] - mean) / deviation).clip(-6, 6) for table in (ours, others))
    first, second = (np.concatenate([table, np.ones((len(table), 1))], axis=1) for table in scaled)
    return first, second


def noise(ours: Grown) -> tuple[float, float]:
    """Return the standard deviations of a gain: of its measurement on one split, and of the gains among plans.

    Both splits measure the same networks, so half of the variance of their difference is that of one measurement.
    """
    both = ours.by_validation[:, 1:], ours.by_test[:, 1:]
    one = float(((both[0] - both[1]) - (both[0] - both[1]).mean()).var() / 2)
    centred = [gains - gains.mean(axis=1, keepdims=True) for gains in both]
    return one**0.5, float((centred[0] * centred[1]).mean()) ** 0.5


def by_half(ours: Grown, deviation: float) -> Floats:
    """Return the gains by test [N] of a choice by half of the samples: as much noise again as returns have."""
    draw, rows = np.random.default_rng(0), np.arange(len(ours.families))
    found = np.zeros(len(rows))
    for _ in range(DRAWS):
        noisy = ours.by_validation + deviation * draw.standard_normal(ours.by_validation.shape)
        noisy[:, 0] = 0.0
        found += ours.by_test[rows, noisy.argmax(axis=1)] / DRAWS
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", default="varied")
    parser.add_argument("--hosts", type=int, default=16)
    parser.add_argument("--reference", type=int, default=16)
    parser.add_argument("--workers", type=int)
    given = parser.parse_args()
    ours = grown(given.set, Split.TEST, given.hosts, given.workers)
    others = grown(given.set, Split.TRAIN, given.reference, given.workers)
    rows, config = np.arange(len(ours.families)), TrialConfig()
    best = ours.by_test[rows, ours.by_validation.argmax(axis=1)]
    print(f"{len(rows)} test hosts, {len(others.families)} of the reference, {ours.by_test.shape[1]} plans")
    print("| who chooses | gain by test | share of hindsight |\n|---|---|---|")
    deviation, spread = noise(ours)
    scored = [(who, ours.by_test[rows, chosen]) for who, chosen in choices(ours, others)]
    for who, gain in [*scored, ("the host itself, by half of the samples", by_half(ours, deviation))]:
        found = paired_bootstrap(gain, config.confidence, config.bootstrap_samples, 0, strata=ours.families)
        share = f"{gain.mean() / best.mean():.0%}"
        print(f"| {who} | {found.mean:+.1f} [{found.lower:+.1f}, {found.upper:+.1f}] | {share} |")
    inflated = ours.by_validation.max(axis=1).mean()
    print(f"hindsight by validation, which chose: {inflated:+.1f}; by test {best.mean():+.1f}")
    print(f"standard deviation of measuring a gain {deviation:.1f}, of true gains among plans of a host {spread:.1f}")


if __name__ == "__main__":
    main()
