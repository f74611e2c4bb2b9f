"""What the networks of several families share."""

from __future__ import annotations

from torch import nn

__all__ = ["he_normal"]


def he_normal(network: nn.Module) -> None:
    """Draw the weights of all linear maps and convolutions in front of a ReLU (He et al. 2015, arXiv:1502.01852)."""
    for part in network.modules():
        if isinstance(part, nn.Linear | nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
