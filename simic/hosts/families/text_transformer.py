"""``text_transformer``: a small causal transformer that tells which kind of character follows a window of text."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from simic.contracts.state import LayerKind
from simic.hosts.blueprints import STANDARD
from simic.hosts.custom import Layer, ModuleFamily, ModuleHost
from simic.hosts.families._causes import Ranges, splits
from simic.hosts.families._networks import he_normal
from simic.hosts.families._text import CLASSES, LENGTH, SYMBOLS, text_digest, windows

__all__ = ["FAMILY", "TextTransformer"]

_WIDTH = 12


class _Embedding(nn.Module):
    """One vector per symbol and one per place."""

    def __init__(self) -> None:
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, _WIDTH)
        self.places = nn.Parameter(0.3 * torch.randn(LENGTH, _WIDTH))

    def forward(self, symbols: Tensor) -> Tensor:
        """int64 [B, T] -> [B, T, D]"""
        out: Tensor = self.symbols(symbols) + self.places
        return out


class _Attention(nn.Module):
    """Causal self-attention with one head and a residual connection (Vaswani et al. 2017, section 3.2)."""

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.out = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]"""
        query, key, value = self.read(h).chunk(3, dim=2)
        future = torch.full((LENGTH, LENGTH), -torch.inf).triu(1)
        weights = (query @ key.transpose(1, 2) / _WIDTH**0.5 + future).softmax(dim=2)
        out: Tensor = h + self.out(weights @ value)
        return out


class _Feedforward(nn.Module):
    """A hidden layer at every place with a residual connection."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(_WIDTH, hidden), nn.Linear(hidden, _WIDTH)
        he_normal(self.inner)

    def forward(self, h: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]"""
        out: Tensor = h + self.out(self.inner(h).relu())
        return out


class _Network(nn.Module):
    """Embedding, attention, feedforward, and a linear classifier of the last place."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.stem, self.attention, self.feedforward = _Embedding(), _Attention(), _Feedforward(hidden)
        self.head = nn.Linear(_WIDTH, CLASSES)

    def forward(self, symbols: Tensor) -> Tensor:
        """int64 [B, T] -> [B, classes]"""
        logits: Tensor = self.head(self.feedforward(self.attention(self.stem(symbols)))[:, -1])
        return logits


class TextTransformer(ModuleFamily):
    """Windows of Python's reference text with trouble drawn from ranges; symbols have no scale."""

    blueprints = (*STANDARD, "attention")
    ranges = Ranges(samples=(144, 480), scale_spread=(0.0, 0.0))

    def host(self, key: int) -> ModuleHost:
        causes = self.ranges.causes(key)
        return ModuleHost(
            _Network(causes.hidden[0]),
            (
                Layer("stem", LayerKind.STEM, has_slot=True, is_linear=True),
                Layer("attention", has_slot=True, is_linear=True),
                Layer("feedforward", has_slot=True, hidden_width=causes.hidden[0], is_linear=True),
                Layer("head", LayerKind.HEAD),
            ),
            *splits(key, causes, CLASSES, partial(windows, key)),
            batch=48,
            learning_rate=0.05 * causes.rate,
        )

    def data_digest(self) -> str:
        """Return the digest of the text, which depends on the version of Python."""
        return text_digest()


FAMILY = TextTransformer()
