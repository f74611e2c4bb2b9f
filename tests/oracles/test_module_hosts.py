"""A stacked host brought in again as a plain module must live the same life: the two are each other's oracle."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.builders.ensembles import action, ensemble, prove, stack
from support.fakes.custom_hosts import grown_modules, install, modules_of
from torch import Tensor, nn

from simic.contracts.actions import Op
from simic.contracts.state import LayerKind
from simic.hosts.batched.data import host_samples
from simic.hosts.batched.dataset import recipes_of
from simic.hosts.batched.trunk import initial_weights
from simic.hosts.custom import Layer, ModuleFamily, ModuleHost, Samples
from simic.hosts.ensemble import Ensemble
from simic.hosts.host_sets import SETS, STANDARD, HostSet, identify
from simic.hosts.interfaces import DataSplit
from simic.hosts.plugins import blueprint_names
from simic.hosts.trunks.mlp import MlpTrunk
from simic.hosts.trunks.normed import NormedTrunk

KEY = 1
"""Of the family ``select``: 512 clean samples, nothing scaled, a linear stem."""


class Stem(nn.Module):
    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Block(nn.Module):
    def __init__(self, down: Tensor, up: Tensor) -> None:
        super().__init__()
        self.down, self.up = nn.Parameter(down), nn.Parameter(up)

    def forward(self, x: Tensor) -> Tensor:
        return x + (x @ self.down).relu() @ self.up


class Head(nn.Module):
    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T


class NormedBlock(nn.Module):
    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.matrix, self.norm = nn.Parameter(matrix), nn.BatchNorm1d(matrix.shape[1])

    def forward(self, x: Tensor) -> Tensor:
        normalised: Tensor = self.norm(x @ self.matrix)
        return normalised.relu()


class Same(ModuleFamily):
    """The stacked host of the key, unstacked."""

    seeds_max = 3

    def __init__(self, trunk: type[MlpTrunk | NormedTrunk] = MlpTrunk) -> None:
        self.trunk = trunk

    def host(self, key: int) -> ModuleHost:
        recipe = recipes_of(identify("benchmark", [key]))[0]
        assert (recipe.samples, recipe.label_noise, recipe.gain_blocks, recipe.is_linear) == (512, 0.0, (), True)
        weights = initial_weights(self.trunk([recipe]), np.array([key]))
        stem, *parts, head = (part[0].clone() for part in weights.parts)
        if self.trunk is MlpTrunk:
            blocks: list[nn.Module] = [Block(*parts[:2]), Block(*parts[2:])]
        else:
            blocks = [NormedBlock(parts[0]), NormedBlock(parts[5])]
        module = nn.Sequential(Stem(stem), *blocks, Head(head))
        parts = [host_samples(key, recipe, part, MlpTrunk.inputs) for part in DataSplit]
        kinds = (LayerKind.STEM, LayerKind.BLOCK, LayerKind.BLOCK, LayerKind.HEAD)
        layers = tuple(Layer(str(index), kind, index < 3, is_linear=index == 0) for index, kind in enumerate(kinds))
        samples = (Samples(torch.from_numpy(one.inputs), torch.from_numpy(one.labels)) for one in parts)
        return ModuleHost(module, layers, *samples)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    families = SETS["benchmark"].families
    monkeypatch.setitem(SETS, "crowded", HostSet(families, seeds_max=3))
    monkeypatch.setitem(SETS, "crowded_normed", HostSet(families, seeds_max=3, kind="normed"))
    install(monkeypatch, {"same": Same(), "same_normed": Same(NormedTrunk)})


def same_life(stacked: Ensemble, own: Ensemble, rows: list[np.ndarray], rel: float) -> None:
    for row in rows:
        for grown in (stacked, own):
            grown.step(row[None])
            for slot in range(3):
                prove(grown, slot)
        ours, theirs = own.observe(), stacked.observe()
        for name in ("train_loss", "validation_loss"):
            assert ours.system[name] == pytest.approx(theirs.system[name], rel=rel), name
        for name in ("train_accuracy", "validation_accuracy"):
            assert ours.system[name] == pytest.approx(theirs.system[name], abs=2.5 / 450), name
        for name in ("gradient_norm", "risk", "gradient_health"):
            np.testing.assert_allclose(ours.slots[name], theirs.slots[name], rtol=20 * rel, atol=1e-3, err_msg=name)
        for name in ("activation_spread", "effective_dimension", "weight_norm", "gradient_norm"):
            np.testing.assert_allclose(ours.layers[name], theirs.layers[name], rtol=20 * rel, atol=1e-3, err_msg=name)


@pytest.mark.parametrize("name", STANDARD)
def test_a_seed_incubates_blends_and_is_kept(name: str) -> None:
    stacked, own = ensemble([KEY], 8, "crowded"), grown_modules([KEY], 8, "same")
    blueprint = blueprint_names().index(name)
    rows = [
        action(Op.GERMINATE, slot=1, blueprint=blueprint),
        action(Op.ADVANCE, slot=1, alpha_target=1, alpha_speed=1),
        action(Op.WAIT),
        action(Op.WAIT),
    ]
    same_life(stacked, own, rows, rel=5e-3)
    ours, theirs = modules_of(own).seeds.parameters[0, 1], stack(stacked).seeds.parameters[0, 1]
    width = min(len(ours), len(theirs))
    torch.testing.assert_close(ours[:width], theirs[:width], rtol=0.05, atol=5e-3)
    assignment = np.array([[0.0, own._slots["alpha"][0, 1], 0.0]], dtype=np.float32)
    measured = [grown._evaluate(DataSplit.VALIDATION, assignment) for grown in (stacked, own)]
    for field in ("accuracy_without", "error_without", "largest_share"):
        np.testing.assert_allclose(getattr(measured[1], field), getattr(measured[0], field), atol=2.5 / 450)


@pytest.mark.parametrize("name", ["dense", "norm"])
def test_batch_normalisation_is_that_of_torch(name: str) -> None:
    """An incubating seed passes through the normalisation of later layers and moves none of its running values."""
    stacked, own = ensemble([KEY], 10, "crowded_normed"), grown_modules([KEY], 10, "same_normed")
    rows = [
        action(Op.WAIT),
        action(Op.GERMINATE, slot=0, blueprint=blueprint_names().index(name), tempo=2),
        action(Op.WAIT),
        action(Op.ADVANCE, slot=0, alpha_target=1, alpha_speed=1),
        action(Op.WAIT),
        action(Op.WAIT),
    ]
    same_life(stacked, own, rows, rel=5e-3)
    module, parts = modules_of(own).hosts[0].module, [part[0] for part in stack(stacked).weights.parts]
    for block, first in ((module[1], 1), (module[2], 6)):
        norm = block.norm
        theirs = (block.matrix, norm.weight, norm.bias, norm.running_mean, norm.running_var)
        for ours, other in zip(parts[first : first + 5], theirs, strict=True):
            torch.testing.assert_close(ours, other.detach(), rtol=0.02, atol=5e-3)
    assert float(parts[5].std()) > 0.01, "the running variances moved"


def test_a_seed_that_learns_beside_a_felt_one_and_one_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extra rows pass through what the host feels, noise included, and never meet each other."""
    stacked, own = ensemble([KEY], 8, "crowded"), grown_modules([KEY], 8, "same")
    gate, dropout, dense = map(blueprint_names().index, ("gate", "dropout", "dense"))
    rows = [
        action(Op.GERMINATE, slot=2, blueprint=dropout),
        action(Op.ADVANCE, slot=2, alpha_target=0, alpha_speed=0),
        action(Op.GERMINATE, slot=0, blueprint=gate, tempo=2),
        action(Op.GERMINATE, slot=1, blueprint=dense, tempo=2),
        action(Op.WAIT),
    ]
    same_life(stacked, own, rows, rel=1e-2)
    assert (own._slots["alpha"][0] > 0).tolist() == [False, False, True]
