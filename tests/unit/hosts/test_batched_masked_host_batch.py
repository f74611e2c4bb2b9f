"""The masked form agrees with the compacted one, never moves its memory and never asks for a number on the way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.builders.ensembles import random_actions, state_digest
from support.checks.host_forms import BLUEPRINTS, Agreement, masked, memory_of, planted, roles_of, state_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from simic.contracts.errors import ConfigError
from simic.contracts.settings.run import WorldConfig
from simic.hosts import ensemble as ensemble_module
from simic.hosts.batched.host_batch import CompactedHosts
from simic.hosts.batched.masked import training as masked_training
from simic.hosts.batched.masked.host_batch import MaskedHosts
from simic.hosts.ensemble import Ensemble
from simic.hosts.host_sets import SETS, HostSet, identify
from simic.hosts.interfaces import DataSplit, SeedAssignment, Site
from simic.hosts.plugins import blueprint_names, load_trunk

KEYS = list(range(12))
EVERYTHING = "everything"
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")),
]
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(autouse=True)
def _everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """A set that offers every blueprint in every slot."""
    families = (*SETS["benchmark"].families, "both")
    monkeypatch.setitem(SETS, EVERYTHING, HostSet(families, seeds_max=3, blueprints=blueprint_names()))


def _episode(monkeypatch: pytest.MonkeyPatch, world_set: str, horizon: int, device: str = "cpu") -> Agreement:
    """Both forms after an episode of random legal actions, each call begun from the compacted form's state."""
    hosts = identify(world_set, KEYS)
    both = Agreement.of(hosts, device)
    monkeypatch.setattr(ensemble_module, "make_host_batch", lambda *_: both)
    grown = Ensemble(hosts, WorldConfig(set=world_set, horizon=horizon))
    rng = np.random.default_rng(3)
    while not grown.is_finished.all():
        grown.step(random_actions(grown.masks(), rng.random((len(KEYS), 7)), patience=0.1))
    return both


def _assert_agree(both: Agreement, evaluation: float) -> None:
    for name, worst in both.worst.items():
        if "accuracy" in name or name == "train seed_health":
            # Counted samples and steps: on another processor one may fall to the other side of a border.
            assert worst < 0.02, (name, worst)
        elif name.startswith("evaluate"):
            assert worst < evaluation, (name, worst)
        else:
            # A hundred-thousandth, times what sixteen steps make of it in hosts whose training is unstable.
            assert worst < 1e-2, (name, worst)


@pytest.mark.parametrize(
    ("world_set", "horizon"),
    [
        ("benchmark", 6),
        ("compound", 8),
        ("varied", 6),
        ("images", 4),
        ("plain_16x3", 6),
        ("pooled_8x2", 4),
        ("normed_8x3", 6),
        ("conv_normed_8x1", 4),
        ("pooled_normed_8x1", 4),
        (EVERYTHING, 12),
    ],
)
def test_both_forms_agree(monkeypatch: pytest.MonkeyPatch, world_set: str, horizon: int) -> None:
    both = _episode(monkeypatch, world_set, horizon)
    _assert_agree(both, evaluation=1e-6)
    names = {blueprint_names()[index] for index in both.active}
    assert len(names) >= 4
    if world_set == EVERYTHING:
        every = {name for name, one in zip(blueprint_names(), BLUEPRINTS, strict=True) if one.suits(Site(24))}
        assert names == every
        assert {blueprint_names()[index] for index in both.incubated} == every - {"dropout"}
        assert both.crossed > 10, "side rows must have met seeds that their hosts feel"


@needs_cuda
def test_a_gpu_agrees_with_the_compacted_form(monkeypatch: pytest.MonkeyPatch) -> None:
    both = _episode(monkeypatch, EVERYTHING, 12, device="cuda")
    worst = {name: value for name, value in both.worst.items() if "accuracy" not in name and "health" not in name}
    assert max(value for name, value in worst.items() if name.startswith("evaluate")) < 1e-2
    # 1/512 of training and 1/450 of validation samples lie on the border.
    assert both.worst["evaluate accuracy"] < 0.05


MIXED = roles_of(
    [("heavy", 0.0), ("gate", 0.6), ("norm", 1.0)],
    [("low_rank", 0.4), ("dense", 0.0), ("dropout", 1.0)],
    [("bottleneck", 1.0), None, ("gate", 0.0)],
    [("norm", 0.0), ("heavy", 0.0), ("low_rank", 0.0)],
    [None, None, None],
)
HOSTS = len(MIXED.alpha)


@pytest.mark.parametrize("device", DEVICES)
def test_dead_seeds_keep_their_bits(device: str) -> None:
    hosts = planted(masked(HOSTS, device), MIXED)
    parked = MIXED._replace(alpha=MIXED.alpha.copy(), is_incubating=MIXED.is_incubating.copy())
    dead = np.zeros(MIXED.alpha.shape, dtype=bool)
    dead[[0, 1, 3], [1, 0, 2]] = True
    parked.alpha[dead], parked.is_incubating[dead] = 0.0, False
    hosts.seeds.momentum.add_(0.01)
    before, chosen = state_of(hosts), torch.from_numpy(dead | (MIXED.blueprint < 0))
    hosts.train(parked, 0)
    after = state_of(hosts)
    for name in ("seeds", "seed momentum"):
        assert torch.equal(after[name][chosen], before[name][chosen])
        sizes = [[0 if index < 0 else _width(index) for index in row] for row in MIXED.blueprint.tolist()]
        moved = (after[name] != before[name]).sum(dim=2)
        live = ~chosen & (torch.tensor(sizes) > 0)
        assert (moved[live] > 0).all()
        beyond = torch.arange(after[name].shape[2]) >= torch.tensor(sizes)[:, :, None]
        assert torch.equal(after[name][beyond], before[name][beyond]), "padding belongs to no seed"


def _width(blueprint: int) -> int:
    return BLUEPRINTS[blueprint].parameters(masked(1).topology.sites[0])


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e30])
def test_a_diverged_seed_that_nobody_feels_touches_nothing(poison: float) -> None:
    """Dead or incubating, it leaves its host, its neighbours and their seeds with the bits they have without it."""
    healthy, sick = planted(masked(HOSTS), MIXED), planted(masked(HOSTS), MIXED)
    parked = MIXED._replace(is_incubating=MIXED.is_incubating.copy())
    parked.is_incubating[3, 0] = False
    sick.seeds.parameters[0, 0] = sick.seeds.parameters[3, 0] = poison
    sick.seeds.parameters[4, 1] = sick.seeds.parameters[2, 1] = poison
    records, shown = [], []
    for hosts in (healthy, sick):
        records.append(hosts.train(parked, 0))
        shown.append(
            hosts.evaluate(DataSplit.VALIDATION, parked._replace(is_incubating=np.zeros_like(parked.is_incubating)))
        )
    ill = np.zeros(parked.alpha.shape, dtype=bool)
    ill[[0, 3, 4, 2], [0, 0, 1, 1]] = True
    for name, value in state_of(healthy).items():
        other = state_of(sick)[name]
        well = torch.from_numpy(~ill) if value.dim() == 3 else torch.ones(HOSTS, dtype=torch.bool)
        assert torch.equal(value[well], other[well]), name
    for one, two in zip(*shown, strict=True):
        np.testing.assert_array_equal(one, two)
    for name in ("loss", "accuracy", "layer_gradient"):
        np.testing.assert_array_equal(getattr(records[0], name), getattr(records[1], name))
    np.testing.assert_array_equal(records[0].seed_gradient[~ill], records[1].seed_gradient[~ill])
    assert np.isfinite(records[1].loss).all()


@pytest.mark.parametrize("poison", [np.nan, 1e25])
def test_a_diverged_host_is_its_own_affair(poison: float) -> None:
    healthy, sick = planted(masked(HOSTS), MIXED), planted(masked(HOSTS), MIXED)
    sick.weights.parts[0][2] = poison
    healthy.train(MIXED, 0)
    record = sick.train(MIXED, 0)
    assert not record.loss[2] < 100
    others = [0, 1, 3, 4]
    for name, value in state_of(healthy).items():
        assert torch.equal(value[others], state_of(sick)[name][others]), name


def _both_forms() -> tuple[MaskedHosts, CompactedHosts]:
    identities = identify("benchmark", list(range(HOSTS)))
    return masked(HOSTS), CompactedHosts(identities, BLUEPRINTS, load_trunk("mlp"))


@pytest.mark.parametrize("scale", [1e16, 1e21])
def test_a_state_that_is_too_much_for_other_blueprints_harms_nobody(scale: float) -> None:
    """Their squares are infinite, which undoes ``norm``, but neither a host nor a seed that never squares them."""
    both, assignment = _both_forms(), roles_of(*[[("low_rank", 0.5), None, None]] * HOSTS)
    records = []
    for hosts in both:
        planted(hosts, assignment)
        hosts.weights.parts[0].mul_(scale)
        records.append(hosts.train(assignment, 0))
    assert both[1].is_finite()[0].any()
    for mine, theirs in zip(both[0].is_finite(), both[1].is_finite(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(np.isfinite(records[0].layer_gradient), np.isfinite(records[1].layer_gradient))


def test_parameters_that_are_too_much_for_other_blueprints_harm_nobody() -> None:
    """What one blueprint reads as a weight another reads as an exponent."""
    both, assignment = _both_forms(), roles_of(*[[("low_rank", 0.5), None, None]] * HOSTS)
    states = []
    for hosts in both:
        planted(hosts, assignment)
        hosts.seeds.parameters[:, 0, :48] *= 1e5
        hosts.seeds.parameters[:, 0, 48:] = 0.0
        hosts.train(assignment, 0)
        states.append(state_of(hosts))
    assert states[1]["seeds"].isfinite().all()
    assert states[0]["seeds"].isfinite().all()


def test_evaluation_knows_no_incubation() -> None:
    hosts = planted(masked(HOSTS), MIXED)
    shown = hosts.evaluate(DataSplit.VALIDATION, MIXED)
    felt_alone = MIXED._replace(is_incubating=np.zeros_like(MIXED.is_incubating))
    for one, two in zip(shown, hosts.evaluate(DataSplit.VALIDATION, felt_alone), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("rows", [[0], [3, 1], [4, 2, 0]], ids=str)
def test_bits_do_not_depend_on_neighbours_or_position(rows: list[int]) -> None:
    identities = identify("benchmark", list(range(HOSTS)))
    together, alone = planted(masked(HOSTS), MIXED), masked([identities[row] for row in rows])
    mine = SeedAssignment(*(column[rows] for column in MIXED))
    planted(alone, mine)
    together.train(MIXED, 0)
    alone.train(mine, 0)
    for name, value in state_of(alone).items():
        assert torch.equal(value, state_of(together)[name][rows]), name


@pytest.mark.parametrize("device", DEVICES)
def test_memory_stays_where_it_is(device: str) -> None:
    """A recording holds addresses: no call may replace a tensor that it uses."""
    hosts = masked(HOSTS, device)
    before = memory_of(hosts)
    assert len(before) > 20
    snapshot = hosts.snapshot()
    empty = roles_of(*[[None] * 3] * HOSTS)
    for epoch, assignment in enumerate((empty, MIXED, MIXED._replace(alpha=MIXED.alpha * 0.5), empty)):
        planted(hosts, assignment)
        hosts.probe(assignment, epoch)
        hosts.train(assignment, epoch)
        hosts.evaluate(DataSplit.VALIDATION, assignment)
        hosts.evaluate(DataSplit.TEST, assignment, leave_one_out=False)
        hosts.clear(assignment.is_incubating)
        hosts.restore(snapshot, np.arange(HOSTS) % 2 == 0)
        assert memory_of(hosts) == before


def test_what_was_shown_does_not_change_afterwards() -> None:
    hosts = planted(masked(HOSTS), MIXED)
    shown = [hosts.train(MIXED, 0).loss, hosts.evaluate(DataSplit.VALIDATION, MIXED).loss, hosts.probe(MIXED, 0)]
    kept = [values.copy() for values in shown]
    hosts.train(MIXED, 1)
    hosts.evaluate(DataSplit.VALIDATION, MIXED)
    hosts.probe(MIXED, 1)
    for values, before in zip(shown, kept, strict=True):
        np.testing.assert_array_equal(values, before)


class _Elsewhere(TorchDispatchMode):
    """Lets no tensor in that does not lie on the meta device, where no number can be read either."""

    calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves((args, kwargs, result)):
            assert not isinstance(value, Tensor) or value.device.type == "meta", f"{func}: {value.device}"
        self.calls += 1
        return result


@pytest.mark.parametrize("call", ["_train", "_probe", "_validate"])
def test_nothing_is_read_back_or_brought_along_on_the_way(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    monkeypatch.setattr(masked_training, "STEPS", 2)
    hosts = masked(HOSTS, device="meta")
    with _Elsewhere() as mode:
        getattr(hosts, call)()
    assert mode.calls > 100


def test_the_number_of_operations_does_not_depend_on_what_is_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masked_training, "STEPS", 1)
    hosts, counts = masked(HOSTS, device="meta"), []
    for assignment in (roles_of(*[[None] * 3] * HOSTS), MIXED):
        hosts._prepare(assignment, 0)
        with _Elsewhere() as mode:
            hosts._train()
        counts.append(mode.calls)
    assert counts[0] == counts[1]


def test_a_blueprint_that_was_not_offered_is_refused() -> None:
    names = blueprint_names()
    offered = [names.index("norm")]
    hosts = MaskedHosts(
        identify("benchmark", [0]), BLUEPRINTS, load_trunk("mlp"), offered=offered, device=torch.device("cpu")
    )
    hosts.train(roles_of([("norm", 1.0), None, None]), 0)
    with pytest.raises(ConfigError, match=rf"row 0, slot 1: blueprint {names.index('gate')} takes part"):
        hosts.train(roles_of([None, ("gate", 0.0), None]), 0)


def _steps(grown: Ensemble, epochs: int) -> Iterator[NDArray[np.float32]]:
    rng = np.random.default_rng(1)
    for _ in range(epochs):
        yield grown.step(random_actions(grown.masks(), rng.random((len(grown), 7)))).validation_accuracy_after


def test_an_ensemble_grows_in_either_form() -> None:
    hosts = identify("compound", KEYS[:6])
    grown = [Ensemble(hosts, WorldConfig(set="compound", form=form)) for form in ("auto", "compacted", "masked")]
    assert [type(one._hosts) for one in grown] == [CompactedHosts, CompactedHosts, MaskedHosts]
    accuracies = np.array([list(_steps(one, 5)) for one in grown])
    np.testing.assert_array_equal(accuracies[0], accuracies[1])
    assert np.abs(accuracies[0] - accuracies[2]).max() < 0.05
    assert state_digest(grown[0]) == state_digest(grown[1]) != state_digest(grown[2])


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"no CUDA device.*use world.device = cpu"):
        Ensemble(identify("benchmark", [0]), WorldConfig(device="cuda"))
