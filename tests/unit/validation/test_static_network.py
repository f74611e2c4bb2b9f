"""Static rivals: against never growing, and against an ensemble whose seeds are fossils before the first epoch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simic.contracts.actions import HEADS, Op
from simic.contracts.batches import OP_INDEX, STAGE_INDEX
from simic.contracts.controllers import ControllerSpec, Plan, PlannedSeed
from simic.contracts.lifecycle import SeedStage
from simic.contracts.rewards import RewardConfig
from simic.contracts.settings.lifecycle import GovernorConfig
from simic.contracts.settings.run import WorldConfig
from simic.contracts.state import HostIdentity
from simic.hosts.ensemble import Ensemble, StepOutcome
from simic.hosts.factory import seed_sizes
from simic.hosts.host_sets import identify
from simic.hosts.plugins import blueprint_names
from simic.validation.baselines.static_network import Rival, StaticJob, grow_rivals, grow_static
from simic.validation.episodes import Episodes, KeptSeed, TrialJob, run_episodes
from simic.validation.host_sizes import host_sizes

WORLD = WorldConfig(horizon=8, workers=1)
REWARD = RewardConfig()
HOSTS = identify("benchmark", range(6))
GATE = KeptSeed(1, 1, "gate", 1.0)


def episodes(spec: ControllerSpec, hosts: tuple[HostIdentity, ...] = HOSTS, world: WorldConfig = WORLD) -> Episodes:
    return run_episodes(TrialJob(spec.name, spec, hosts, world, REWARD, seed=3))


def static(kept: tuple[KeptSeed, ...], epochs: int = 8, reward: RewardConfig = REWARD) -> Rival:
    many = len(HOSTS)
    (rival,) = grow_static(StaticJob(HOSTS, (kept,) * many, ((epochs,) * many,), WORLD, reward))
    return rival


@pytest.mark.parametrize("world", [WORLD, WorldConfig(set="trunks", horizon=4, workers=1)])
def test_without_seeds_the_rival_is_the_host_that_never_grows(world: WorldConfig) -> None:
    """Also where hosts of several layouts take turns, which grow in batches of their own."""
    hosts = identify(world.set, range(6))
    waited = episodes(ControllerSpec(name="wait"), hosts, world)
    for rival in grow_rivals(hosts, waited, world, REWARD):
        assert rival.returns == pytest.approx(waited.returns, abs=1e-9)
        assert rival.validation_accuracy == pytest.approx(waited.validation_accuracy)
        assert rival.test_accuracy == pytest.approx(waited.test_accuracy)
        assert rival.epochs.tolist() == [world.horizon] * 6


@pytest.mark.parametrize("kept", [(GATE,), (KeptSeed(0, 2, "heavy", 0.5), KeptSeed(2, 1, "norm", 1.0))])
def test_seeds_take_effect_from_the_first_step_on(kept: tuple[KeptSeed, ...]) -> None:
    """The oracle is an ensemble in which the seeds are marked as fossils before the first epoch."""
    ensemble, names = Ensemble(HOSTS, WORLD), blueprint_names()
    sizes = seed_sizes(ensemble._hosts)
    for seed in kept:
        index = names.index(seed.blueprint)
        values = {
            "stage": STAGE_INDEX[SeedStage.FOSSILIZED], "blueprint": index, "alpha": seed.alpha,
            "alpha_start": seed.alpha, "alpha_target": seed.alpha, "parameters": sizes[seed.slot, index],
        }  # fmt: skip
        for name, value in values.items():
            ensemble._slots[name][:, seed.slot] = value
        for host in range(len(HOSTS)):
            ensemble._hosts.germinate(host, seed.slot, seed.number, index)
    actions = np.full((len(HOSTS), len(HEADS)), -1, dtype=np.int16)
    actions[:, 0] = OP_INDEX[Op.WAIT]
    outcomes: list[StepOutcome] = [ensemble.step(actions) for _ in range(WORLD.horizon)]
    rival = static(kept)
    begun, last = outcomes[0].validation_accuracy_before, outcomes[-1]
    assert rival.validation_accuracy == pytest.approx(last.committed_validation_accuracy)
    assert rival.test_accuracy == pytest.approx(last.test_accuracy)
    gains = 100.0 * (last.committed_validation_accuracy.astype(np.float64) - begun)
    assert rival.returns == pytest.approx(gains - 3.0 * last.committed_parameters / 1640, abs=1e-9)
    assert last.committed_parameters[0] == sum(sizes[seed.slot, names.index(seed.blueprint)] for seed in kept)


def test_the_number_of_a_seed_decides_how_it_is_born() -> None:
    assert static((GATE,)).returns.tolist() != static((GATE._replace(number=2),)).returns.tolist()


def test_rivals_train_for_the_epochs_and_for_the_compute_of_the_episode() -> None:
    plan = Plan(seeds=[PlannedSeed(epoch=0, slot=1, blueprint="gate")])
    grown = episodes(ControllerSpec(name="schedule", plan=plan))
    assert grown.committed_parameters.any()
    for found, more in ((grown, 0), (replace(grown, seed_epochs=grown.seed_epochs + 40_000), 2)):
        same_epochs, same_compute = grow_rivals(HOSTS, found, WORLD, REWARD)
        assert same_epochs.epochs.tolist() == [8] * 6
        sizes = host_sizes(HOSTS, WORLD).parameters
        static_cost = sizes + grown.committed_parameters
        spent = sizes * 8 + found.seed_epochs
        assert (same_compute.epochs * static_cost <= spent).all()
        assert ((same_compute.epochs + 1) * static_cost > spent).all()
        assert (same_compute.epochs > 8 + more).any() == (more > 0)
        short = same_compute.epochs.tolist()
        again = grow_static(StaticJob(HOSTS, tuple(found.kept), (tuple(short),), WORLD, REWARD))[0]
        assert again.returns.tolist() == same_compute.returns.tolist(), "the other rival does not matter"


def test_a_host_that_diverges_is_stopped_and_pays() -> None:
    """The seed's alpha is out of all proportion, so that training blows up."""
    wild = KeptSeed(0, 1, "heavy", 1e6)
    rival, calm = static((wild,)), static((GATE,))
    assert rival.panicked.any() and not calm.panicked.any()
    row = int(np.argmax(rival.panicked))
    free = static((wild,), reward=REWARD.model_copy(update={"governor_penalty": 0.0}))
    assert free.returns[row] - rival.returns[row] == pytest.approx(10.0)
    assert rival.epochs[row] < 8
    assert np.isfinite(rival.returns).all()


def test_a_rival_is_stopped_by_the_bounds_of_its_world() -> None:
    """As the host that never grows is: a single sample in one class and any loss of accuracy are a collapse here."""
    strict = WORLD.model_copy(update={"governor": GovernorConfig(collapsed_share=1e-6, lost_accuracy=0.0)})
    (rival,) = grow_static(StaticJob(HOSTS, ((),) * len(HOSTS), ((8,) * len(HOSTS),), strict, REWARD))
    waited = episodes(ControllerSpec(name="wait"), world=strict)
    assert waited.panicked.any() and not static(()).panicked.any()
    assert rival.panicked.tolist() == waited.panicked.tolist()
    assert rival.returns == pytest.approx(waited.returns, abs=1e-9)
