"""Hosts of one's own in an ensemble: pure where they must be, alike whoever trains beside them, safe when they fail."""

from __future__ import annotations

import hashlib
from functools import cache

import numpy as np
import pytest
import torch
from support.builders.ensembles import action, prove, random_actions, stage_of, step_with, waits
from support.fakes.custom_hosts import Maps, Toy, ToyFamily, grown_modules, install, modules_of
from torch import Tensor, nn

from simic.contracts.actions import Op
from simic.contracts.batches import OP_INDEX, STAGE_INDEX
from simic.contracts.errors import ConfigError, IllegalActionError
from simic.contracts.field_report import GovernorKind
from simic.contracts.lifecycle import SeedStage
from simic.contracts.state import LayerKind
from simic.controllers.features import encode
from simic.hosts import rng
from simic.hosts.blueprints.norm import Norm
from simic.hosts.custom import ModuleHost
from simic.hosts.ensemble import Ensemble
from simic.hosts.host_sets import MODULES, SETS, STANDARD, HostSet
from simic.hosts.interfaces import DataSplit, SeedAssignment, Site
from simic.hosts.plugins import blueprint_names
from simic.hosts.rng import Purpose

HEAVY, GATE, DROPOUT = (blueprint_names().index(name) for name in ("heavy", "gate", "dropout"))


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, {"toy": ToyFamily(), "toy_maps": ToyFamily(Maps, (1, 4, 4))})


def host_digest(grown: Ensemble, row: int = 0, *, with_seeds: bool = True) -> str:
    """SHA-256 over all that training changes in one host."""
    batch = modules_of(grown)
    host = batch.hosts[row]
    tensors = [*host.module.parameters(), *host.module.buffers(), *host.momentum.values()]
    tensors += [one[row] for one in batch.seeds] if with_seeds else []
    return hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)).hexdigest()


def bits(grown: Ensemble, row: int) -> list[bytes]:
    observed = grown.observe().take(np.array([row]))
    tables = (observed.system, observed.history, observed.slots, observed.layers)
    return [host_digest(grown, row).encode(), *(column.tobytes() for table in tables for column in table.values())]


def history(keys: list[int], name: str, seen: set[int] | None = None) -> dict[int, list[bytes]]:
    """Bits after every step under random legal actions that depend on the key alone."""
    grown = grown_modules(keys, 8, name)
    found: dict[int, list[bytes]] = {key: bits(grown, row) for row, key in enumerate(keys)}
    for epoch in range(8):
        uniforms = rng.uniforms(rng.streams(keys, Purpose.CONTROLLER, 3, epoch), 7)
        outcome = grown.step(random_actions(grown.masks(), uniforms))
        for row, key in enumerate(keys):
            columns = [column[row].tobytes() for column in outcome if isinstance(column, np.ndarray)]
            found[key] += bits(grown, row) + columns
        if seen is not None:
            seen |= set(grown.observe().slots["stage"].tolist())
    return found


@pytest.mark.parametrize("name", ["toy", "toy_maps"])
def test_bits_do_not_depend_on_neighbours_or_position(name: str) -> None:
    """Dropout and batch statistics of the user's own included."""
    stages: set[int] = set()
    together = history([3, 5, 8], name, stages)
    assert stages >= {STAGE_INDEX[stage] for stage in (SeedStage.TRAINING, SeedStage.BLENDING, SeedStage.EMBARGOED)}
    for keys in ([5], [8, 3], [8, 5, 3]):
        torch.manual_seed(len(keys))
        apart = history(keys, name)
        assert all(apart[key] == together[key] for key in keys)


def test_every_key_has_weights_of_its_own_and_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(11)
    before = torch.random.get_rng_state()
    grown = grown_modules([1, 2])
    first, second = (host.module.get_parameter("stem.weight") for host in modules_of(grown).hosts)
    assert not torch.equal(first, second)
    step_with(grown, action(Op.GERMINATE, blueprint=DROPOUT))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_evaluation_changes_nothing() -> None:
    grown = grown_modules([1])
    step_with(grown, action(Op.GERMINATE, blueprint=HEAVY))
    step_with(grown, action(Op.ADVANCE))
    module = modules_of(grown).hosts[0].module
    module.drop.eval()
    before, flags = host_digest(grown), [part.training for part in module.modules()]
    for part in DataSplit:
        first = grown._evaluate(part, grown._slots["alpha"])
        assert first.accuracy_without[0, 0] == first.accuracy_without[0, 0]
        again = grown._evaluate(part, grown._slots["alpha"])
        assert all(np.array_equal(one, other, equal_nan=True) for one, other in zip(first, again, strict=True))
    assert host_digest(grown) == before
    assert [part.training for part in module.modules()] == flags
    assert True in flags
    assert not any(part._forward_hooks for part in module.modules())
    assert all(parameter.grad is None for parameter in module.parameters())


def test_a_module_that_draws_in_evaluation_draws_the_same_for_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave-one-out compares networks, not draws."""
    grown = grown_modules([1])
    host = modules_of(grown).hosts[0]
    monkeypatch.setattr(host.module.drop, "train", lambda _=True: host.module.drop)
    step_with(grown, action(Op.GERMINATE, blueprint=GATE))
    alpha = np.array([[1e-30, 0.0]], dtype=np.float32)
    assert host.module.drop.training
    measured = grown._evaluate(DataSplit.VALIDATION, alpha)
    assert (measured.accuracy_without[0, 0], measured.error_without[0, 0]) == (measured.accuracy[0], 0.0)


def test_l2_a_host_does_not_notice_the_seeds_that_learn_beside_it() -> None:
    """Not one bit: weights, momenta, batch statistics and draws are what they are without the seeds."""
    alone, beside = grown_modules([4]), grown_modules([4])
    step_with(alone)
    step_with(beside, action(Op.GERMINATE, slot=1, blueprint=HEAVY, tempo=2))
    for slot in (None, 0, None):
        step_with(alone)
        step_with(beside, *([] if slot is None else [action(Op.GERMINATE, slot=slot, blueprint=GATE, tempo=2)]))
        assert host_digest(alone, with_seeds=False) == host_digest(beside, with_seeds=False)
    assert (stage_of(beside, slot=0), stage_of(beside, slot=1)) == (SeedStage.TRAINING, SeedStage.TRAINING)
    learned = modules_of(beside).seeds.parameters[0]
    assert all(bool((row != 0).any()) for row in learned)
    step_with(alone)
    step_with(beside, action(Op.ADVANCE, slot=1))
    assert host_digest(alone, with_seeds=False) != host_digest(beside, with_seeds=False), "now it is felt"


def test_an_incubated_seed_lowers_the_loss_of_the_network_it_learned_for() -> None:
    grown = grown_modules([1, 2, 3], horizon=20, name="toy_maps")
    step_with(grown, *[action(Op.GERMINATE, slot=0, blueprint=GATE, tempo=2)] * 3)
    for _ in range(4):
        step_with(grown)
    off, on = np.zeros((3, 2), dtype=np.float32), np.tile(np.float32([1, 0]), (3, 1))
    losses = [grown._evaluate(DataSplit.TRAIN, alpha).loss for alpha in (off, on)]
    assert (losses[1] < 0.8 * losses[0]).all()


def test_a_host_is_clipped_with_the_seeds_it_feels_and_a_seed_that_incubates_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With one step an epoch and no momentum left, what moves moves by learning rate times clip norm."""
    install(monkeypatch, {"toy": ToyFamily(batch=1000, learning_rate=0.5, clip_norm=0.01)})
    grown = grown_modules([1])
    batch = modules_of(grown)
    host = batch.hosts[0]

    def moved(*row: np.ndarray) -> tuple[float, float]:
        """By the host, and by the seed in slot 0."""
        for tensor in (*host.momentum.values(), batch.seeds.momentum):
            tensor.zero_()
        before = torch.cat([one.detach().flatten() for one in host.module.parameters()]), batch.seeds.parameters.clone()
        step_with(grown, *row)
        after = torch.cat([one.detach().flatten() for one in host.module.parameters()]), batch.seeds.parameters
        return tuple(float((one - other).norm()) for one, other in zip(after, before, strict=True))  # type: ignore

    step_with(grown, action(Op.GERMINATE, blueprint=HEAVY))
    assert moved() == pytest.approx((0.005, 0.005), rel=0.01)
    own, seeds = moved(action(Op.ADVANCE))
    assert np.hypot(own, seeds) == pytest.approx(0.005, rel=0.01)
    assert seeds > 0


def test_germination_resets_the_momentum_and_clearing_leaves_nothing() -> None:
    batch = modules_of(grown_modules([1]))
    batch.seeds.momentum[0, 1] = 7.0
    batch.germinate(0, 1, 1, HEAVY)
    assert not batch.seeds.momentum.any()
    assert batch.is_clear().tolist() == [[True, False]]
    batch.clear(np.array([[False, True]]))
    assert batch.is_clear().all()


def test_a_snapshot_brings_back_weights_momenta_buffers_and_seeds() -> None:
    grown = grown_modules([1, 2])
    step_with(grown, action(Op.GERMINATE, blueprint=GATE), action(Op.GERMINATE, blueprint=GATE))
    batch, before = modules_of(grown), [host_digest(grown, row) for row in range(2)]
    snapshot = batch.snapshot()
    step_with(grown)
    after = [host_digest(grown, row) for row in range(2)]
    batch.restore(snapshot, np.array([False, True]))
    assert [host_digest(grown, row) for row in range(2)] == [after[0], before[1]]
    assert after[1] != before[1]
    assert batch.memory().snapshot == sum(
        tensor.nbytes for state in snapshot.hosts for table in state for tensor in table.values()
    ) + sum(one.nbytes for one in snapshot.seeds)


def test_a_host_that_diverges_at_once_is_a_governor_event(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, {"toy": ToyFamily(learning_rate=1e6)})
    grown = grown_modules([1])
    before = host_digest(grown, with_seeds=False)
    outcome = step_with(grown, action(Op.GERMINATE, blueprint=HEAVY))
    assert outcome.governor[0] is not None
    assert outcome.governor[0].kind in (GovernorKind.DIVERGENCE, GovernorKind.NON_FINITE)
    assert outcome.terminated.all()
    assert np.isfinite(outcome.test_accuracy).all()
    assert host_digest(grown, with_seeds=False) == before


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e30])
def test_l4_a_poisoned_host_is_rolled_back_and_harms_nobody(poison: float) -> None:
    healthy, sick = grown_modules([1, 2], 4), grown_modules([1, 2], 4)
    for epoch in range(4):
        healthy.step(waits(2))
        if epoch == 1:
            with torch.no_grad():
                modules_of(sick).hosts[0].module.get_parameter("stem.weight")[0] = poison
        outcome = sick.step(waits(2))
        assert [event is not None for event in outcome.governor] == [epoch == 1, False]
        assert host_digest(sick, 1) == host_digest(healthy, 1)


def test_a_family_may_hand_out_one_module_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training happens in a copy, so a second episode does not begin where the first ended."""

    class Remembering(ToyFamily):
        host = cache(ToyFamily.host)  # type: ignore[assignment]

    install(monkeypatch, {"toy": Remembering()})
    assert history([1], "toy") == history([1], "toy")


def test_hosts_must_not_share_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sharing(ToyFamily):
        shared = nn.Linear(4, 6)

        def host(self, key: int) -> ModuleHost:
            host = super().host(key)
            host.module.stem = self.shared
            return host

    install(monkeypatch, {"toy": Sharing()})
    grown_modules([1])
    with pytest.raises(ConfigError, match=r"host 2: parameter stem.weight is shared with family 'toy', host 1"):
        grown_modules([1, 2])


def test_hosts_of_one_family_have_the_same_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    class Growing(ToyFamily):
        def host(self, key: int) -> ModuleHost:
            self.module = lambda: Toy(width=6 + key)
            return super().host(key)

    install(monkeypatch, {"toy": Growing()})
    with pytest.raises(ConfigError, match="host 2: its layers differ from those of family 'toy', host 1"):
        grown_modules([1, 2])


class Narrow(Norm):
    """Fits four features only."""

    def suits(self, site: Site, /) -> bool:
        return site.width == 4


def test_a_blueprint_that_does_not_suit_every_slot_is_illegal_and_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    family = ToyFamily(Maps, (1, 4, 4))
    family.blueprints = (*STANDARD, "narrow")
    install(monkeypatch, {"toy_maps": family}, {"narrow": Narrow()})
    grown = grown_modules([1], name="toy_maps")
    narrow = grown.blueprints.index("narrow")
    assert grown.masks().blueprint[0].tolist() == [name in STANDARD for name in grown.blueprints]
    with pytest.raises(IllegalActionError, match="host 1"):
        step_with(grown, action(Op.GERMINATE, slot=0, blueprint=narrow))
    modules_of(grown).germinate(0, 0, 1, narrow)
    with pytest.raises(ConfigError, match=r"host 1, slot 1: Narrow does not suit Site\(width=6, space=\(2, 2\)\)"):
        modules_of(grown).germinate(0, 1, 1, narrow)
    family.blueprints = ("narrow",)
    with pytest.raises(ConfigError, match="none of the blueprints narrow can grow"):
        grown_modules([1], name="toy_maps")


def test_kinds_do_not_mix_in_one_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, strangers in (("mlp", "toy"), (MODULES, "cap")):
        monkeypatch.setitem(SETS, "mixed", HostSet(("cap", "toy"), seeds_max=1, kind=kind))
        with pytest.raises(ConfigError, match=rf"kind '{kind}' cannot hold families \['{strangers}'\]"):
            grown_modules([0, 1], name="mixed")


def test_what_a_controller_sees_of_a_convolution_net() -> None:
    grown = grown_modules([1, 2], name="toy_maps")
    step_with(grown, action(Op.GERMINATE, slot=1, blueprint=HEAVY))
    observed = grown.observe()
    assert observed.layers["width"].tolist() == [4, 6, 3] * 2
    assert observed.layers["is_linear"].tolist() == [False, False, True] * 2
    assert observed.layers["hidden_width"].tolist()[1] == 6
    assert np.isnan(observed.layers["hidden_width"][[0, 2]]).all()
    assert np.isfinite(observed.layers["activation_spread"]).all()
    assert observed.slots["parameters"].tolist() == [0, 2 * 6 * 8 + 8 + 6 + 12, 0, 0]
    assert observed.slots["gradient_norm"][1] > 0
    assert observed.slots["gradient_health"][1] == 1.0
    assert encode(observed).slot_x.isfinite().all()
    norms = modules_of(grown).hosts[0].module.stem.parameters()
    expected = torch.sqrt(sum((one.detach().double() ** 2).sum() for one in norms))
    assert observed.layers["weight_norm"][0] == pytest.approx(float(expected), rel=1e-5)


def test_l7_a_felt_seed_moves_with_its_host_and_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    grown = grown_modules([1], horizon=12)
    step_with(grown, action(Op.GERMINATE, slot=1, blueprint=HEAVY))
    step_with(grown, action(Op.ADVANCE, slot=1))
    before = modules_of(grown).seeds.parameters[0, 1].clone()
    step_with(grown)
    assert not torch.equal(before, modules_of(grown).seeds.parameters[0, 1])
    slots = grown.observe().slots
    assert 0 < slots["risk"][1] <= 1
    assert np.isnan(slots["risk"][0])
    assert slots["contribution_epochs"][1] == 0
    prove(grown, 1)
    assert grown.masks().op[0, OP_INDEX[Op.FOSSILIZE]]
    outcome = step_with(grown, action(Op.FOSSILIZE, slot=1))
    assert outcome.committed_parameters[0] == slots["parameters"][1] > 0


def test_hooks_are_gone_even_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    grown = grown_modules([1])
    module = modules_of(grown).hosts[0].module

    def fail(_: Tensor) -> Tensor:
        raise RuntimeError("out of order")

    monkeypatch.setattr(module.drop, "forward", fail)
    with pytest.raises(RuntimeError, match="out of order"):
        step_with(grown)
    assert not any(part._forward_hooks for part in module.modules())


def test_a_layer_that_changes_its_shape_later_is_named() -> None:
    grown = grown_modules([1], name="toy_maps")
    grown_stem = modules_of(grown).hosts[0].module.stem
    grown_stem.stride = (2, 2)
    with pytest.raises(ConfigError, match=r"layer 'stem': expected an output \(10, 4, 4, 4\).*found \(10, 4, 2, 2\)"):
        step_with(grown)


def test_a_seed_on_a_branch_that_leads_nowhere_never_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    class Blind(Toy):
        def forward(self, inputs: Tensor) -> Tensor:
            x = self.stem(inputs).relu()
            self.block(x)
            logits: Tensor = self.head(x)
            return logits

    install(monkeypatch, {"toy": ToyFamily(Blind)})
    grown = grown_modules([1])
    step_with(grown, action(Op.GERMINATE, slot=1, blueprint=HEAVY))
    assert stage_of(grown, slot=1) is SeedStage.GERMINATED
    assert modules_of(grown).topology.connects == ((0, 1), (0, 2))


def test_probing_changes_nothing() -> None:
    grown = grown_modules([1])
    batch = modules_of(grown)
    batch.germinate(0, 0, 1, HEAVY)
    before = host_digest(grown)
    assignment = SeedAssignment(
        np.full((1, 2), HEAVY, dtype=np.int16), np.zeros((1, 2), dtype=np.float32), np.array([[True, False]])
    )
    norms = batch.probe(assignment, 0)
    assert norms[0, 0] > 0
    assert np.isnan(norms[0, 1])
    assert host_digest(grown) == before


def test_kinds_reach_the_anatomy() -> None:
    assert modules_of(grown_modules([1])).topology.kinds == (LayerKind.STEM, LayerKind.BLOCK, LayerKind.HEAD)


def test_a_module_that_works_in_place_spoils_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    class Grabbing(Toy):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs.mul_(2.0))

    family = ToyFamily(Grabbing)
    spec = family.host(1)
    monkeypatch.setattr(family, "host", lambda _: spec)
    install(monkeypatch, {"toy": family})
    before = [samples.inputs.clone() for samples in (spec.train, spec.validation, spec.test)]
    grown = grown_modules([1], horizon=4)
    for _ in range(4):
        grown.step(waits(1))
    assert all(
        torch.equal(samples.inputs, kept)
        for samples, kept in zip((spec.train, spec.validation, spec.test), before, strict=True)
    )


class _Shifted(Toy):
    """Takes one from its inputs, in place or not: the same function of them."""

    is_in_place = False

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs.sub_(1.0) if self.is_in_place else inputs - 1.0)


class _ShiftedInPlace(_Shifted):
    is_in_place = True


def test_seeds_learn_from_the_samples_and_not_from_what_a_pass_made_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, {"plain": ToyFamily(_Shifted), "in_place": ToyFamily(_ShiftedInPlace)})
    seen = []
    for name in ("plain", "in_place"):
        grown = grown_modules([1], name=name)
        step_with(grown, action(Op.GERMINATE, blueprint=HEAVY, tempo=2))
        step_with(grown)
        seen.append(modules_of(grown).seeds.parameters.clone())
    assert seen[0].any()
    assert torch.equal(*seen)


def test_an_expanded_buffer_and_an_empty_parameter_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(Toy):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("ones", torch.ones(1).expand(4))
            self.nothing = nn.Parameter(torch.empty(0))

    install(monkeypatch, {"odd": ToyFamily(Odd)})
    grown = grown_modules([1, 2], name="odd")
    step_with(grown, action(Op.GERMINATE, blueprint=HEAVY, tempo=2))
    step_with(grown)
    assert np.isfinite(grown.observe().system["train_loss"]).all()
