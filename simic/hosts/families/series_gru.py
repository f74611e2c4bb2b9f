"""``series_gru``: a gated recurrent unit on generated series."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from simic.contracts.state import LayerKind
from simic.hosts.blueprints import STANDARD
from simic.hosts.custom import Layer, ModuleFamily, ModuleHost
from simic.hosts.families._causes import Ranges, splits
from simic.hosts.families._networks import he_normal
from simic.hosts.families._series import CLASSES, LENGTH, series

__all__ = ["FAMILY", "SeriesGru"]

_WIDTH = 8
_PATCH = 4
"""Steps of time that the network reads at once."""


class _Recurrent(nn.Module):
    """A GRU (Cho et al. 2014, arXiv:1406.1078) and a linear map of its states."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.cell = nn.GRU(_WIDTH, hidden, batch_first=True)
        self.out = nn.Linear(hidden, _WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        """[B, patches, D] -> [B, patches, D]"""
        states, _ = self.cell(h)
        out: Tensor = self.out(states)
        return out


class _Network(nn.Module):
    """Patches, a block at every patch, a recurrent block over them, and a linear classifier of the last state."""

    def __init__(self, hidden: tuple[int, int]) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(_PATCH, _WIDTH), nn.ReLU())
        self.block = nn.Sequential(nn.Linear(_WIDTH, hidden[0]), nn.ReLU(), nn.Linear(hidden[0], _WIDTH), nn.ReLU())
        self.recurrent = _Recurrent(hidden[1])
        self.head = nn.Linear(_WIDTH, CLASSES)
        he_normal(self.stem)
        he_normal(self.block)

    def forward(self, values: Tensor) -> Tensor:
        """[B, T] -> [B, classes]"""
        patches = values.view(len(values), LENGTH // _PATCH, _PATCH)
        logits: Tensor = self.head(self.recurrent(self.block(self.stem(patches)))[:, -1])
        return logits


class SeriesGru(ModuleFamily):
    """The series of ``series_conv``; the block has 1 to 12 hidden units, the GRU as many states."""

    blueprints = (*STANDARD, "attention")
    ranges = Ranges()

    def host(self, key: int) -> ModuleHost:
        causes = self.ranges.causes(key)
        return ModuleHost(
            _Network(causes.hidden),
            (
                Layer("stem", LayerKind.STEM, has_slot=True),
                Layer("block", has_slot=True, hidden_width=causes.hidden[0]),
                Layer("recurrent", has_slot=True, hidden_width=causes.hidden[1], is_linear=True),
                Layer("head", LayerKind.HEAD),
            ),
            *splits(key, causes, CLASSES, partial(series, key, causes)),
            batch=24,
            learning_rate=0.1 * causes.rate,
        )


FAMILY = SeriesGru()
