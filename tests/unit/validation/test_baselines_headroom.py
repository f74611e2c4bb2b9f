"""Headroom: sorted gains of all single seeds, and a best plan that other hosts than those which chose it measure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from simic.contracts.controllers import Plan
from simic.contracts.errors import ConfigError
from simic.contracts.results.headroom import Headroom
from simic.contracts.rewards import RewardConfig
from simic.contracts.settings.run import WorldConfig
from simic.contracts.splits import Split, split_of
from simic.hosts.host_sets import STANDARD
from simic.validation.baselines import halving
from simic.validation.baselines.candidates import HEADROOM_EPOCHS
from simic.validation.baselines.headroom import measure_headroom
from simic.validation.episodes import Episodes

WORLD = WorldConfig(workers=1, chunk=64)
Worth = Callable[[Plan, str, int], float]


def measured(
    monkeypatch: pytest.MonkeyPatch, worth: Worth, hosts: int = 8, world: WorldConfig = WORLD, luck: Worth | None = None
) -> Headroom:
    """Headroom of a made-up world, in which a plan has a worth by family and place of the host in its family.

    ``luck`` raises the validation accuracy alone, by so many points.
    """
    places: dict[str, dict[int, int]] = {}

    def run(job: halving._Job) -> Episodes:
        returns, lucky = [], []
        for which, host in zip(job.which, job.trial.hosts, strict=True):
            own = places.setdefault(host.family, {})
            place = own.setdefault(host.key, len(own))
            plan = job.specs[which].plan
            lucky.append(0.0 if plan is None or luck is None else luck(plan, host.family, place))
            returns.append(
                50.0 + host.key % 40 + (0.0 if plan is None else worth(plan, host.family, place)) + lucky[-1]
            )
        nothing = np.zeros(len(returns))
        none = nothing.astype(np.int64)
        validation = 0.5 + np.array(lucky) / 100.0
        return Episodes(
            returns=np.array(returns),
            validation_accuracy=validation,
            test_accuracy=nothing + 0.5,
            committed_parameters=none,
            seed_epochs=none,
            rents=nothing,
            panicked=nothing.astype(np.bool_),
            validation_loss=nothing,
            test_returns=np.array(returns) + 100.0 * (0.5 - validation),
            illegal_actions=none,
            kept=none.astype(object),
            flags=np.zeros((len(returns), 3), dtype=np.int64),
            effort=np.zeros((len(returns), 6), dtype=np.int64),
        )

    monkeypatch.setattr(halving, "_grow_mixed", run)
    return measure_headroom(world, RewardConfig(), hosts, seed=3)


def specialised(plan: Plan, family: str, _place: int) -> float:
    (seed,) = plan.seeds
    wanted = {"cap": "heavy", "select": "gate", "gain": "norm", "noisy": "dropout"}
    worth = 8.0 if seed.blueprint == wanted.get(family) else -3.0
    return worth - seed.slot - 0.1 * seed.epoch


def test_every_single_seed_is_measured_on_every_family_and_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(monkeypatch, specialised)
    assert list(found.families) == ["cap", "select", "gain", "noisy", "fine"]
    assert len(found.host_keys) == 40
    assert {split_of("benchmark", key) for key in found.host_keys} == {Split.TRAIN}
    for own in (*found.families.values(), found.all_families):
        assert len(own.plans) == len(STANDARD) * 3 * len(HEADROOM_EPOCHS)
        assert len({one.plan.model_dump_json() for one in own.plans}) == len(own.plans)
        means = [one.over_wait.mean for one in own.plans]
        assert means == sorted(means, reverse=True)
    best = found.families["gain"].plans[0]
    assert [(seed.blueprint, seed.slot, seed.epoch) for seed in best.plan.seeds] == [("norm", 0, 1)]
    assert best.over_wait.mean == pytest.approx(7.9)
    assert best.over_wait.n == 8
    assert found.all_families.plans[0].over_wait.n == 40


def test_a_family_in_which_nothing_gains_chooses_never_to_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(monkeypatch, specialised)
    fine = found.families["fine"]
    assert fine.chosen == Plan()
    assert (fine.over_wait.mean, fine.over_wait.lower, fine.over_wait.upper, fine.when_chosen) == (0.0, 0.0, 0.0, 0.0)
    assert fine.plans[0].over_wait.mean == pytest.approx(-3.1)
    assert found.all_families.chosen == Plan(), "every blueprint harms four families more than it helps one"
    assert found.plan_per_family.mean == pytest.approx(4 * 7.9 / 5)
    assert found.plan_per_family.n == 20


def test_hosts_that_choose_do_not_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that gains on the first half alone is chosen, and its estimate is what it gains on the second."""

    def lucky(plan: Plan, _family: str, place: int) -> float:
        (seed,) = plan.seeds
        if (seed.blueprint, seed.slot, seed.epoch) == ("dense", 1, 4):
            return 6.0 if place < 4 else -2.0
        return 1.0 if seed.blueprint == "gate" else 0.0

    found = measured(monkeypatch, lucky)
    for own in (*found.families.values(), found.all_families):
        assert [(seed.blueprint, seed.slot, seed.epoch) for seed in own.chosen.seeds] == [("dense", 1, 4)]
        assert own.when_chosen == pytest.approx(6.0)
        assert own.over_wait.mean == pytest.approx(-2.0)
        assert own.plans[0].over_wait.mean == pytest.approx(2.0)
    assert found.plan_per_family.mean == pytest.approx(-2.0)


def test_hindsight_takes_the_best_plan_of_each_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_place(plan: Plan, family: str, place: int) -> float:
        (seed,) = plan.seeds
        if family == "fine":
            return -1.0
        return 4.0 + place if seed.slot == place % 3 and seed.blueprint == "gate" else -2.0

    found = measured(monkeypatch, by_place)
    assert found.families["cap"].hindsight.mean == pytest.approx(4.0 + 3.5)
    assert found.families["cap"].hindsight.n == 8
    assert found.families["fine"].hindsight.mean == 0.0, "never to grow is a plan too"
    assert found.all_families.hindsight.mean == pytest.approx(4 * 7.5 / 5)


def test_luck_on_validation_data_is_no_hindsight(monkeypatch: pytest.MonkeyPatch) -> None:
    """The luckiest plan is chosen; measured on test data it is worth what it is."""

    def worth(plan: Plan, _family: str, _place: int) -> float:
        return 3.0 if plan.seeds[0].blueprint == "norm" else 1.0

    def luck(plan: Plan, _family: str, _place: int) -> float:
        return 10.0 if plan.seeds[0].blueprint == "dense" else 0.0

    found = measured(monkeypatch, worth, luck=luck).all_families
    assert found.plans[0].over_wait.mean == pytest.approx(11.0)
    assert found.hindsight.mean == pytest.approx(1.0)


def test_a_tiny_run_on_real_hosts_repeats_and_another_seed_draws_others() -> None:
    world = WorldConfig(set="region_few", horizon=6, workers=1)
    first, again = (measure_headroom(world, RewardConfig(), 4, seed=1) for _ in range(2))
    assert first == again
    gains = [one.over_wait.mean for one in first.families["region_few"].plans]
    assert len(set(gains)) > 10
    assert first.all_families == first.families["region_few"]
    assert first.plan_per_family == first.all_families.over_wait
    other = measure_headroom(world, RewardConfig(), 4, seed=2)
    assert not set(other.host_keys) & set(first.host_keys)


def test_too_few_hosts_are_refused() -> None:
    with pytest.raises(ConfigError, match="4 or more hosts per family, found 3"):
        measure_headroom(WORLD, RewardConfig(), 3)
