"""Low-rank adapters of a trained network's linear layers (Hu et al. 2022, arXiv:2106.09685, section 4.1).

A layer ``h = W x + b`` becomes ``h = W x + b + (alpha / r) B A dropout(x)``. W, b and all other weights are frozen, A
is drawn from a normal distribution and B is 0, so the network begins as it was. Merged, ``W + (alpha / r) B A`` is an
ordinary weight: a policy that is sealed after such a training has no trace of adapters.
"""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from simic.contracts.settings.continual import LoraConfig

__all__ = ["LoraLinear", "adapt", "effective_parameters", "merged"]

Network = TypeVar("Network", bound=nn.Module)


class LoraLinear(nn.Linear):
    """A frozen linear layer with an adapter; its own weight and bias keep their names."""

    def __init__(self, layer: nn.Linear, config: LoraConfig, generator: torch.Generator) -> None:
        """Take over the parameters of ``layer``; ``generator`` draws A, and later what the dropout leaves out."""
        super().__init__(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
        self.weight, self.bias = layer.weight, layer.bias
        self.scale, self.dropout, self._generator = config.alpha / config.rank, config.dropout, generator
        self.lora_a = nn.Parameter(torch.empty(config.rank, layer.in_features))
        self.lora_b = nn.Parameter(torch.zeros(layer.out_features, config.rank))
        with torch.no_grad():
            self.lora_a.normal_(0.0, layer.in_features**-0.5, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., outputs] from x [..., inputs]; in training mode the adapter's inputs are under dropout."""
        return super().forward(x) + self.scale * functional.linear(
            functional.linear(self._dropped(x), self.lora_a), self.lora_b
        )

    def _dropped(self, x: Tensor) -> Tensor:
        if not self.training or self.dropout == 0.0:
            return x
        stays = torch.rand(x.shape, generator=self._generator).to(x) >= self.dropout
        return x * stays / (1.0 - self.dropout)

    def merged_weight(self) -> Tensor:
        """Return W + (alpha / r) B A [outputs, inputs], with gradients of the factors."""
        return self.weight + self.scale * (self.lora_b @ self.lora_a)

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """Return an ordinary layer with the weight W + (alpha / r) B A."""
        layer = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None, device="meta")
        layer.weight = nn.Parameter(self.merged_weight())
        layer.bias = None if self.bias is None else nn.Parameter(self.bias.detach().clone())
        return layer


def adapt(network: nn.Module, config: LoraConfig, generator: torch.Generator) -> None:
    """Freeze all parameters of a network and give each linear layer an adapter; with rank 0 it stays as it is."""
    if config.rank == 0:
        return
    network.requires_grad_(requires_grad=False)
    for name, layer in _linear_layers(network):
        network.set_submodule(name, LoraLinear(layer, config, generator))


def merged(network: Network) -> Network:
    """Return a copy of a network in which every adapter is merged into its layer; one without adapters is copied."""
    plain = copy.deepcopy(network)
    for name, layer in _linear_layers(plain):
        if isinstance(layer, LoraLinear):
            plain.set_submodule(name, layer.merged())
    return plain.requires_grad_(requires_grad=True)


def effective_parameters(network: nn.Module) -> dict[str, Tensor]:
    """Return the parameters that a merged copy would have, by name and with gradients."""
    adapted = {name: layer for name, layer in _linear_layers(network) if isinstance(layer, LoraLinear)}
    factors = {f"{name}.lora_{factor}" for name in adapted for factor in "ab"}
    plain: dict[str, Tensor] = {name: own for name, own in network.named_parameters() if name not in factors}
    return plain | {f"{name}.weight": layer.merged_weight() for name, layer in adapted.items()}


def _linear_layers(network: nn.Module) -> list[tuple[str, nn.Linear]]:
    """Return the linear layers by name, sorted, so that draws do not depend on the order of construction."""
    return sorted((name, layer) for name, layer in network.named_modules() if isinstance(layer, nn.Linear))
