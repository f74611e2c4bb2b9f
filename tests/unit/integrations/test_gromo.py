"""Layers of gromo as slots: what docs/trainers.md says of them is so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gromo.containers.growing_block import LinearGrowingBlock
from gromo.containers.growing_mlp import GrowingMLP
from gromo.containers.growing_mlp_mixer import GrowingMLPMixer
from gromo.containers.growing_residual_mlp import GrowingResidualMLP
from gromo.containers.resnet import init_full_resnet_structure
from gromo.modules.conv2d_growing_module import FullConv2dGrowingModule, RestrictedConv2dGrowingModule
from support.builders.trained_elsewhere import run_examples
from torch import nn
from torch.nn.functional import cross_entropy

import simic

SHAPES = {"flat": (8,), "map": (1, 8, 8)}


def convolutions(kind: Any) -> nn.Module:
    first = kind(1, 4, kernel_size=3, padding=1, post_layer_function=nn.ReLU())
    return nn.Sequential(first, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


def block() -> nn.Module:
    return nn.Sequential(LinearGrowingBlock(8, 8, hidden_features=6, name="block"), nn.Linear(8, 3))


def mlp() -> nn.Module:
    return GrowingMLP(in_features=8, out_features=3, hidden_size=6, number_hidden_layers=2)


def resnet() -> nn.Module:
    return init_full_resnet_structure(
        input_shape=(1, 8, 8), out_features=3, hidden_channels=(4, 4), number_of_blocks_per_stage=1, nb_stages=2,
        inplanes=4, small_inputs=True,
    )  # fmt: skip


CASES: dict[str, tuple[Callable[[], nn.Module], str, str, str | None]] = {
    "linear": (mlp, "flat", "layers.0", None),
    "full convolution": (lambda: convolutions(FullConv2dGrowingModule), "map", "0", None),
    "restricted convolution": (lambda: convolutions(RestrictedConv2dGrowingModule), "map", "0", None),
    "block": (block, "flat", "0", None),
    "first layer of a block": (block, "flat", "0.first_layer", None),
    "second layer of a block": (block, "flat", "0.second_layer", "a kept seed needs a torch.nn.Sequential"),
    "shared activation": (mlp, "flat", "layers.0.post_layer_function", "must run once each"),
    "residual block": (
        lambda: GrowingResidualMLP(in_features=(8,), out_features=3, num_features=6, hidden_features=6, num_blocks=1),
        "flat", "blocks.0", None,
    ),
    "mixer": (
        lambda: GrowingMLPMixer(in_features=(1, 8, 8), out_features=3, patch_size=4, num_features=6,
                                hidden_dim_token=4, hidden_dim_channel=6, num_blocks=1),
        "map", "mixers.0", None,
    ),
    "block of a ResNet": (resnet, "map", "stages.0.0", None),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_which_layers_can_be_slots(case: str) -> None:
    make, shape, slot, refused = CASES[case]
    torch.manual_seed(0)
    network, data = make(), (torch.randn(9, *SHAPES[shape]), torch.arange(9) % 3)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    settings: dict[str, Any] = {"slots": [slot], "validation": data, "epochs": 4, "policy": "wait"}
    if refused is not None:
        with pytest.raises(simic.ConfigError, match=refused):
            simic.Grower(network, optimizer, **settings)
        return
    grower = simic.Grower(network, optimizer, **settings)
    network.train()
    grower.loss(network(data[0]), data[1]).backward()
    optimizer.step()
    assert grower.step().epoch == 1


def test_gromo_must_not_grow_a_layer_while_a_grower_is_attached() -> None:
    torch.manual_seed(0)
    network, data = mlp(), (torch.randn(9, 8), torch.arange(9) % 3)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    grower = simic.Grower(network, optimizer, slots=["layers.0"], validation=data, epochs=4, policy="wait")
    network.train()
    grower.loss(network(data[0]), data[1]).backward()
    optimizer.step()
    network.set_growing_layers("sequential")  # type: ignore[operator]
    network.init_computation()  # type: ignore[operator]
    network.zero_grad()
    cross_entropy(network(data[0]), data[1]).backward()
    network.update_computation()  # type: ignore[operator]
    network.compute_optimal_updates(maximum_added_neurons=2)  # type: ignore[operator]
    network.reset_computation()  # type: ignore[operator]
    network.dummy_select_update()  # type: ignore[operator]
    network.set_scaling_factor(1.0)  # type: ignore[operator]
    network.apply_change()  # type: ignore[operator]
    with pytest.raises(simic.ConfigError, match=r"layer 'layers.0': expected an output"):
        grower.step()


def test_the_example_runs() -> None:
    network = run_examples("gromo")["network"]
    assert isinstance(network, nn.Module)
    first = next(part for part in network.modules() if isinstance(part, nn.Linear))
    assert 4 < first.out_features <= 8
    assert any(isinstance(part, nn.Sequential) for part in network.modules()), "the page shows a seed that was kept"
