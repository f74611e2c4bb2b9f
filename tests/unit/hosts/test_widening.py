"""Seeds that widen: a host with one computes what the wider network computes that is written down here."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from support.builders.ensembles import action, prove, random_actions, stage_of, step_with
from support.fakes.custom_hosts import CLASSES, LAYERS, Maps, Toy, ToyFamily, blobs, grown_modules, install, modules_of
from torch import Tensor, nn
from torch.nn import functional

from simic.contracts.actions import Op
from simic.contracts.batches import OP_INDEX
from simic.contracts.errors import ConfigError
from simic.contracts.lifecycle import SeedStage
from simic.contracts.settings.lifecycle import LifecycleConfig
from simic.contracts.settings.run import WorldConfig
from simic.hosts import rng
from simic.hosts.blueprints.widen import BLUEPRINT, Widen
from simic.hosts.custom import ModuleHost
from simic.hosts.custom.forward import ActiveSeed, forward
from simic.hosts.custom.host import CustomHost, build_host
from simic.hosts.ensemble import Ensemble
from simic.hosts.factory import is_sane
from simic.hosts.host_sets import identify
from simic.hosts.interfaces import DataSplit, Site
from simic.hosts.plugins import blueprint_names
from simic.hosts.rng import Purpose

WIDEN = blueprint_names().index("widen")
Wide = Callable[[nn.Module, list[Tensor], Tensor], Tensor]
"""Logits of the wider network, from the host's module, the seed's weights and inputs."""


class Pooled(nn.Module):
    """Maps through a strided convolution with batch statistics, and a pooled, flattened state."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU())
        self.block = nn.Sequential(
            nn.Conv2d(3, 5, 5, stride=2, padding=2), nn.BatchNorm2d(5), nn.ReLU(inplace=True), nn.AvgPool2d(2)
        )
        self.head = nn.Linear(5 * 4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.block(self.stem(x)).flatten(1))
        return logits


class Tokens(nn.Module):
    """Sequences [B, T, D] position by position, then a convolution whose features come first, and a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(3, 4)
        self.block = nn.Conv1d(4, 6, 3, padding="same")
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = self.block(self.stem(x).relu().transpose(1, 2)).relu()
        logits: Tensor = self.head(y.mean(dim=2))
        return logits


class Recurrent(Tokens):
    """A block without a convolution or linear map inside."""

    def __init__(self) -> None:
        super().__init__()
        self.block = _Last()


class _Last(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 6, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.gru(x.transpose(1, 2))[0]
        return states.transpose(1, 2)


class InPlace(Toy):
    """Its block overwrites the input that a seed on it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 6))

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.block(self.stem(inputs)))
        return logits


def _pooled_stem(m: nn.Module, w: list[Tensor], x: Tensor) -> Tensor:
    conv, after = m.stem[0], m.block[0]
    wide = functional.conv2d(x, torch.cat([conv.weight, w[0].view(-1, 2, 3, 3)]), torch.cat([conv.bias, w[1]]), 1, 1)
    kernel = torch.cat([after.weight, w[2].view(5, -1, 5, 5)], dim=1)
    y = m.block[1:](functional.conv2d(wide.relu(), kernel, after.bias, 2, 2))
    logits: Tensor = m.head(y.flatten(1))
    return logits


def _pooled_block(m: nn.Module, w: list[Tensor], x: Tensor) -> Tensor:
    state = m.stem(x)
    new = functional.conv2d(state, w[0].view(-1, 3, 3, 3), w[1], 4, 1).relu()
    wide = torch.cat([m.block(state), new], dim=1)
    return functional.linear(wide.flatten(1), torch.cat([m.head.weight, w[2].view(CLASSES, -1)], dim=1), m.head.bias)


def _toy_stem(m: nn.Module, w: list[Tensor], x: Tensor) -> Tensor:
    """Two readers: the block, and the head past it."""
    old, new = m.stem(x).relu(), functional.linear(x, w[0].view(-1, 4), w[1]).relu()
    first, wide = m.block[0], torch.cat([old, new], dim=1)
    y = m.block[1:](functional.linear(wide, torch.cat([first.weight, w[2].view(6, -1)], dim=1), first.bias))
    both = torch.cat([m.drop(old + y), new], dim=1)
    return functional.linear(both, torch.cat([m.head.weight, w[3].view(CLASSES, -1)], dim=1), m.head.bias)


def _in_place_block(m: nn.Module, w: list[Tensor], x: Tensor) -> Tensor:
    state = m.stem(x)
    new = functional.linear(state.clone(), w[0].view(-1, 6), w[1]).relu()
    both = torch.cat([m.block(state), new], dim=1)
    return functional.linear(both, torch.cat([m.head.weight, w[2].view(CLASSES, -1)], dim=1), m.head.bias)


def _tokens_stem(m: nn.Module, w: list[Tensor], x: Tensor) -> Tensor:
    weight, bias = torch.cat([m.stem.weight, w[0].view(-1, 3)]), torch.cat([m.stem.bias, w[1]])
    wide = functional.linear(x, weight, bias).relu().transpose(1, 2)
    kernel = torch.cat([m.block.weight, w[2].view(6, -1, 3)], dim=1)
    logits: Tensor = m.head(functional.conv1d(wide, kernel, m.block.bias, 1, 1).relu().mean(dim=2))
    return logits


def _tokens_block(m: nn.Module, w: list[Tensor], x: Tensor) -> Tensor:
    state = m.stem(x).relu()
    new = functional.linear(state, w[0].view(-1, 4), w[1]).relu()
    wide = torch.cat([m.block(state.transpose(1, 2)).relu(), new.transpose(1, 2)], dim=1).mean(dim=2)
    return functional.linear(wide, torch.cat([m.head.weight, w[2].view(CLASSES, -1)], dim=1), m.head.bias)


def _recurrent_stem(m: nn.Module, w: list[Tensor], x: Tensor) -> Tensor:
    """The output of the block is widened, because nothing in it is a matrix that could be."""
    new = functional.linear(x, w[0].view(-1, 3), w[1]).relu()
    y = m.block(m.stem(x).relu().transpose(1, 2)) + functional.linear(new, w[2].view(6, -1)).transpose(1, 2)
    logits: Tensor = m.head(y.relu().mean(dim=2))
    return logits


CASES: dict[str, tuple[type[nn.Module], tuple[int, ...], int, Wide]] = {
    "strided convolution with batch statistics": (Pooled, (2, 8, 8), 0, _pooled_stem),
    "pooled and flattened head": (Pooled, (2, 8, 8), 1, _pooled_block),
    "two readers": (Toy, (4,), 0, _toy_stem),
    "input overwritten": (InPlace, (4,), 1, _in_place_block),
    "convolution over positions": (Tokens, (5, 3), 0, _tokens_stem),
    "mean over positions": (Tokens, (5, 3), 1, _tokens_block),
    "no matrix to widen": (Recurrent, (5, 3), 0, _recurrent_stem),
}


def _family(module: type[nn.Module], shape: tuple[int, ...]) -> ToyFamily:
    layers = (LAYERS[0], LAYERS[1], LAYERS[2])
    if len(shape) == 2:
        layers = (layers[0], layers[1]._replace(feature_axis=1), layers[2])
    family = ToyFamily(module, shape, layers=layers)
    family.blueprints = ("widen", "norm")
    return family


def _host(module: type[nn.Module], shape: tuple[int, ...]) -> CustomHost:
    return build_host(_family(module, shape), 3, "family 'f', host 3", with_readers=True)


def _seed(site: Site, scale: float = 0.3) -> Tensor:
    """Parameters [1, P] as training may leave them."""
    return torch.randn(1, BLUEPRINT.parameters(site), generator=torch.Generator().manual_seed(1)) * scale


def _weights(parameters: Tensor, site: Site, inputs: int) -> list[Tensor]:
    """W, w and each V, by sizes of their own: the first two from ``inputs`` numbers to U features."""
    units = max(8, site.width // 2)
    rest = parameters.numel() - units * (inputs + 1)
    outs = [one.width for one in site.readers]
    shares = [rest * one // sum(outs) for one in outs]
    return list(torch.split(parameters.flatten(), [units * inputs, units, *shares]))


def _inputs(site: Site) -> int:
    return {(8, 8): 18, (2, 2): 27, (5,): site.source[-1]}.get(site.space, site.source[-1])


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("case", CASES)
def test_the_host_is_the_wider_network_in_values_and_gradients(case: str, training: bool) -> None:
    module, shape, slot, wide = CASES[case]
    host = _host(module, shape)
    site, samples = host.layout.topology.sites[slot], blobs(5, 12, shape)
    parameters = _seed(site).requires_grad_()
    results = []
    for compute in (
        lambda x: forward(host.module, host.layout.hooks, x, {slot: ActiveSeed(BLUEPRINT, parameters, 1.0)}),
        lambda x: wide(host.module, _weights(parameters, site, _inputs(site)), x),
    ):
        host.module.train(training)
        torch.manual_seed(0)
        logits = compute(samples.inputs.clone())
        leaves = [parameters, *host.module.parameters()]
        results.append((logits, *torch.autograd.grad(functional.cross_entropy(logits, samples.labels), leaves)))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert (results[0][1] != 0).any()


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("case", CASES)
def test_nothing_changes_at_birth_and_half_of_it_at_half_the_alpha(case: str, training: bool) -> None:
    module, shape, slot, _ = CASES[case]
    host, inputs = _host(module, shape), blobs(5, 12, shape).inputs
    site = host.layout.topology.sites[slot]

    def logits(seeds: dict[int, ActiveSeed]) -> Tensor:
        host.module.train(training)
        torch.manual_seed(0)
        return forward(host.module, host.layout.hooks, inputs.clone(), seeds).detach()

    born = BLUEPRINT.birth(_seed(site, 1.0), site)
    assert is_sane(BLUEPRINT, site, LifecycleConfig())
    assert torch.equal(logits({slot: ActiveSeed(BLUEPRINT, born, 1.0)}), logits({}))
    grown, features = _seed(site), _inputs(site) * max(8, site.width // 2) + max(8, site.width // 2)
    halved = torch.cat([grown[:, :features], grown[:, features:] * 0.5], dim=1)
    half, same = (logits({slot: ActiveSeed(BLUEPRINT, *one)}) for one in ((grown, 0.5), (halved, 1.0)))
    torch.testing.assert_close(half, same)
    assert not torch.equal(half, logits({}))


@pytest.mark.parametrize("case", CASES)
def test_new_features_are_float32_under_autocast(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, shape, slot, _ = CASES[case]
    host, inputs = _host(module, shape), blobs(5, 12, shape).inputs
    seeds = {slot: ActiveSeed(BLUEPRINT, _seed(host.layout.topology.sites[slot]), 1.0)}
    read, logits = set(), []

    def additions(parameters: Tensor, x: Tensor, site: Site) -> list[Tensor]:
        added = Widen().additions(parameters, x, site)
        read.update({x.dtype, *(one.dtype for one in added)})
        return added

    monkeypatch.setattr(BLUEPRINT, "additions", additions)
    host.module.eval()
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            logits.append(forward(host.module, host.layout.hooks, inputs.clone(), seeds))
    assert read == {torch.float32}
    assert logits[1].dtype == torch.bfloat16
    torch.testing.assert_close(logits[1].float(), logits[0], rtol=0.1, atol=0.1)


def test_new_features_are_read_before_normalisation_and_nonlinearity() -> None:
    hooks = _host(Pooled, (2, 8, 8)).layout.hooks
    assert [[place.name for place in hook.readers] for hook in hooks] == [["block.0"], ["head"], []]
    hooks = _host(Toy, (4,)).layout.hooks
    assert [[place.name for place in hook.readers] for hook in hooks] == [["block.0", "head"], ["head"], []]


class Ids(nn.Module):
    """Reads numbers of words, which no matrix can read."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block, self.head = nn.Embedding(5, 4), nn.Linear(4, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.block(self.stem((x > 0).long())).mean(dim=1))
        return logits


def test_where_input_or_readers_are_unknown_nothing_widens() -> None:
    assert not Widen().suits(Site(24))
    assert not is_sane(Widen(), Site(8, (4, 4)), LifecycleConfig())
    sites = build_host(_family(Ids, (7,)), 3, "f", with_readers=True).layout.topology.sites
    assert [BLUEPRINT.suits(site) for site in sites] == [False, True]
    family = _family(Toy, (4,))
    family.changes = {"layers": (*LAYERS[:2], LAYERS[2]._replace(has_slot=True))}
    sites = build_host(family, 3, "f", with_readers=True).layout.topology.sites
    assert [BLUEPRINT.suits(site) for site in sites] == [True, True, False], "nothing reads the head"


class Moody(Toy):
    """Leaves its block out as soon as ``skips`` is set."""

    skips = False

    def forward(self, inputs: Tensor) -> Tensor:
        x = self.stem(inputs).relu()
        y = x + self.block[1:](x) if self.skips else x + self.block(x)
        logits: Tensor = self.head(y)
        return logits


def test_a_reader_that_no_longer_reads_is_an_error() -> None:
    host = _host(Moody, (4,))
    site, hooks = host.layout.topology.sites[0], [host.layout.hooks[0]]
    seeds = {0: ActiveSeed(BLUEPRINT, _seed(site), 1.0)}
    inputs = blobs(5, 12, (4,)).inputs
    forward(host.module, hooks, inputs, seeds)
    host.module.skips = True
    with pytest.raises(ConfigError, match="a layer that reads slot 0 in the dry run did not run"):
        forward(host.module, hooks, inputs, seeds)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in host.module.modules())


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = {"pooled": (Pooled, (2, 8, 8)), "toy": (Toy, (4,)), "toy_maps": (Maps, (1, 4, 4))}
    install(monkeypatch, {name: _family(*shape) for name, shape in shapes.items()})


def _tensors(grown: Ensemble) -> list[Tensor]:
    host = modules_of(grown).hosts[0]
    return [
        one.detach().clone() for one in (*host.module.parameters(), *host.module.buffers(), *host.momentum.values())
    ]


@pytest.mark.usefixtures("installed")
def test_l2_a_host_does_not_notice_a_widening_seed_that_learns_in_isolation() -> None:
    alone, beside = grown_modules([4], name="pooled"), grown_modules([4], name="pooled")
    step_with(alone)
    step_with(beside, action(Op.GERMINATE, slot=1, blueprint=WIDEN, tempo=2))
    born = modules_of(beside).seeds.parameters.clone()
    for row in (action(Op.GERMINATE, slot=0, blueprint=WIDEN, tempo=2), None):
        step_with(alone)
        step_with(beside, *([] if row is None else [row]))
    assert all(torch.equal(one, other) for one, other in zip(_tensors(alone), _tensors(beside), strict=True))
    assert not torch.equal(modules_of(beside).seeds.parameters, born)
    assert (stage_of(beside, slot=0), stage_of(beside, slot=1)) == (SeedStage.TRAINING, SeedStage.TRAINING)


@pytest.mark.usefixtures("installed")
def test_a_widening_seed_is_measured_kept_and_counted() -> None:
    grown = grown_modules([1], horizon=12, name="toy_maps")
    step_with(grown, action(Op.GERMINATE, slot=1, blueprint=WIDEN))
    step_with(grown, action(Op.ADVANCE, slot=1))
    step_with(grown)
    slots = grown.observe().slots
    # W: 3x3 kernels of 4 channels and a bias for 8 features; V: they are flattened from 2x2 into 3 logits.
    assert slots["parameters"].tolist() == [0, 8 * 36 + 8 + 3 * 8 * 4]
    assert 0 < slots["risk"][1] <= 1
    alpha = grown._slots["alpha"]
    with_it = grown._evaluate(DataSplit.VALIDATION, alpha)
    without = grown._evaluate(DataSplit.VALIDATION, np.zeros_like(alpha))
    assert with_it.accuracy_without[0, 1] == without.accuracy[0]
    assert with_it.loss[0] != without.loss[0]
    prove(grown, 1)
    assert grown.masks().op[0, OP_INDEX[Op.FOSSILIZE]]
    outcome = step_with(grown, action(Op.FOSSILIZE, slot=1))
    assert outcome.committed_parameters[0] == slots["parameters"][1]


@pytest.mark.usefixtures("installed")
def test_the_risk_of_a_widening_seed_is_its_share_of_what_the_readers_give() -> None:
    grown = grown_modules([1], name="toy")
    batch = modules_of(grown)
    values = _seed(batch.topology.sites[0])[0]
    batch.seeds.parameters[0, 0, : len(values)] = values
    grown._slots["blueprint"][0, 0] = WIDEN
    measured = grown._evaluate(DataSplit.VALIDATION, np.array([[0.5, 0.0]], dtype=np.float32))
    host, x = batch.hosts[0], batch.hosts[0].spec.validation.inputs
    with torch.no_grad():
        host.module.eval()
        w = _weights(values, batch.topology.sites[0], 4)
        new = functional.linear(x, w[0].view(-1, 4), w[1]).relu()
        adds = [0.5 * functional.linear(new, one.view(rows, -1)) for one, rows in ((w[2], 6), (w[3], CLASSES))]
        old = host.module.stem(x).relu()
        first = host.module.block[0](old)
        block = host.module.block[1:](first + adds[0])
        outputs = [first, host.module.head(old + block)]
        above, below = (torch.cat([one.flatten() for one in many]).norm() for many in (adds, outputs))
    assert measured.risk[0, 0] == pytest.approx(float(above / below), rel=1e-4)


def _history(keys: list[int], seen: set[str]) -> dict[int, list[bytes]]:
    """Bits after every step under random legal actions that depend on the key alone."""
    grown = grown_modules(keys, 8, "pooled")
    found: dict[int, list[bytes]] = {key: [] for key in keys}
    for epoch in range(8):
        grown.step(random_actions(grown.masks(), rng.uniforms(rng.streams(keys, Purpose.CONTROLLER, 3, epoch), 7)))
        seen |= {grown.blueprints[index] for index in grown._slots["blueprint"].ravel() if index >= 0}
        for row, key in enumerate(keys):
            batch = modules_of(grown)
            tensors = [*batch.hosts[row].module.state_dict().values(), batch.seeds.parameters[row]]
            found[key] += [one.detach().numpy().tobytes() for one in tensors]
    return found


@pytest.mark.usefixtures("installed")
def test_bits_do_not_depend_on_neighbours() -> None:
    seen: set[str] = set()
    together = _history([3, 5, 8], seen)
    assert seen == {"widen", "norm"}
    assert _history([5], set())[5] == together[5]
    assert _history([8, 3], set()) == {key: together[key] for key in (8, 3)}


class Hidden(nn.Module):
    """Its block reads with as many hidden units as it is told; its output is always as wide."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(4, 6), nn.Linear(6, CLASSES)
        self.block = nn.Sequential(nn.Linear(6, units), nn.ReLU(), nn.Linear(units, 6))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.block(self.stem(x).relu()))
        return logits


def test_hosts_that_widen_are_read_alike_and_others_need_not_be(monkeypatch: pytest.MonkeyPatch) -> None:
    class Drawn(ToyFamily):
        def host(self, key: int) -> ModuleHost:
            self.module = lambda: Hidden(key)
            return super().host(key)

    family = Drawn()
    install(monkeypatch, {"drawn": family})
    assert len(grown_modules([3, 5], name="drawn")) == 2
    family.blueprints = ("norm", "widen")
    assert grown_modules([3], name="drawn").masks().blueprint[0, WIDEN]
    with pytest.raises(ConfigError, match=r"host 5: its layers differ .* in what reads their layers"):
        grown_modules([3, 5], name="drawn")


@pytest.mark.usefixtures("installed")
def test_a_widening_seed_adds_whatever_the_world_blends_with() -> None:
    grown = Ensemble(identify("toy", [1]), WorldConfig(set="toy", horizon=8, blend="multiply"))
    assert grown.masks().blueprint[0].nonzero()[0].tolist() == [blueprint_names().index("norm"), WIDEN]
    step_with(grown, action(Op.GERMINATE, slot=0, blueprint=WIDEN))
    step_with(grown, action(Op.ADVANCE, slot=0))
    assert np.isfinite(grown.observe().slots["risk"][0])


@pytest.mark.usefixtures("installed")
def test_widening_lowers_the_loss_of_a_narrow_network() -> None:
    grown = grown_modules([1, 2, 3], horizon=20, name="toy_maps")
    step_with(grown, *[action(Op.GERMINATE, slot=0, blueprint=WIDEN, tempo=2)] * 3)
    for _ in range(4):
        step_with(grown)
    off, on = np.zeros((3, 2), dtype=np.float32), np.tile(np.float32([1, 0]), (3, 1))
    losses = [grown._evaluate(DataSplit.TRAIN, alpha).loss for alpha in (off, on)]
    assert (losses[1] < losses[0]).all()
