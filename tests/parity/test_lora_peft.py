"""Low-rank adapters against an independent package."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

from simic.contracts.settings.continual import LoraConfig
from simic.learning.continual.lora import LoraLinear, adapt, merged


def _peft() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("peft", reason="peft is not installed (extra dev)")


@pytest.mark.parametrize(("rank", "alpha"), [(1, 1.0), (4, 32.0), (16, 32.0)])
def test_d19_equal_to_peft(rank: int, alpha: float) -> None:
    """With the same factors: output, merged weights, and the gradients of factors and inputs."""
    peft = _peft()
    generator = torch.Generator().manual_seed(rank)
    ours = nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 3, bias=False))
    theirs = nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 3, bias=False))
    theirs.load_state_dict(ours.state_dict())
    adapt(ours, LoraConfig(rank=rank, alpha=alpha), generator)
    settings = peft.LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules=["0", "2"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = peft.get_peft_model(theirs, settings)
    for name in ("0", "2"):
        own, other = ours.get_submodule(name), adapted.base_model.model.get_submodule(name)
        assert isinstance(own, LoraLinear)
        own.lora_b.data.normal_(generator=generator)
        other.lora_A["default"].weight.data.copy_(own.lora_a)
        other.lora_B["default"].weight.data.copy_(own.lora_b)
    inputs = [torch.randn(5, 7, generator=generator).requires_grad_() for _ in range(2)]
    inputs[1].data.copy_(inputs[0].data)
    outputs = ours.eval()(inputs[0]), adapted.eval()(inputs[1])
    torch.testing.assert_close(*outputs, rtol=1e-6, atol=1e-6)
    for output in outputs:
        output.square().sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad, rtol=1e-5, atol=1e-5)
    learning = [[one.grad for one in network.parameters() if one.requires_grad] for network in (ours, adapted)]
    assert len(learning[0]) == len(learning[1]) == 4
    torch.testing.assert_close(learning[0], learning[1], rtol=1e-5, atol=1e-4)
    whole = adapted.merge_and_unload()
    for name, value in merged(ours).state_dict().items():
        torch.testing.assert_close(value, whole.state_dict()[name], rtol=1e-6, atol=1e-6)
