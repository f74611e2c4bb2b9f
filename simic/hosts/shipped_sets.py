"""The table of shipped host sets.

A file of its own, because a new row changes nothing about the hosts of the others (``set_sources``).
"""

from __future__ import annotations

from typing import NamedTuple

from simic.hosts.blueprints import STANDARD

__all__ = ["MODULES", "SETS", "TRUNKS", "HostSet"]

MODULES = "modules"
"""``HostSet.kind`` of families that have modules of their own."""
TRUNKS = "of families"
"""``HostSet.kind`` of stacked families that have trunks of their own."""


class HostSet(NamedTuple):
    """A named set of host families with shared limits."""

    families: tuple[str, ...]
    """Key k belongs to family k modulo the number of families."""
    seeds_max: int
    """Limit of seeds alive or fossilised at a time."""
    kind: str = "mlp"
    """The trunk: a file in ``trunks``, ``MODULES``, or ``TRUNKS``."""
    blueprints: tuple[str, ...] = STANDARD
    """Blueprints that may germinate."""
    has_pictures: bool = False
    """Whether the hosts read images, which ``world.images`` may replace."""
    needs_book: bool = True
    """Whether candidates of this set, if it is shipped, are judged only with a plan book."""

    @property
    def is_mixed(self) -> bool:
        """Return whether families differ in layers and slots, so that hosts of one family train as a batch."""
        return self.kind in (MODULES, TRUNKS)


_FIVE = ("cap", "select", "gain", "noisy", "fine")
_REGIONS = tuple(
    f"region_{name}"
    for name in ("narrow", "select", "scaled", "noisy", "few", "paced", "started", "skewed", "mixed", "healthy")
)
_SHAPES = (
    *(f"plain_{size}" for size in ("4x1", "6x2", "10x1", "12x2", "16x3", "24x2", "64x1")),
    *(f"normed_{size}" for size in ("8x3", "32x1", "48x2")),
    *(f"residual_{size}" for size in ("8x1", "12x3", "36x2")),
)
_MAPS = (
    *(f"conv_{size}" for size in ("4x2", "8x1", "12x1", "normed_8x1", "normed_12x2")),
    *(f"pooled_{size}" for size in ("6x1", "8x2", "12x1", "normed_8x1")),
)
SETS: dict[str, HostSet] = {
    "benchmark": HostSet(_FIVE, seeds_max=1),
    "compound": HostSet((*_FIVE, "both"), seeds_max=3),
    "images": HostSet(
        ("match", *_FIVE[1:]),
        seeds_max=1,
        kind="cnn",
        blueprints=(*STANDARD, "conv3x3", "depthwise"),
        has_pictures=True,
    ),
    "maps": HostSet(_MAPS, seeds_max=1, kind=TRUNKS, blueprints=(*STANDARD, "conv3x3", "depthwise"), needs_book=False),
    "shapes": HostSet(_SHAPES, seeds_max=1, kind=TRUNKS, needs_book=False),
    "trunks": HostSet(
        ("cnn_plain", "series_conv", "series_gru", "text_transformer"),
        seeds_max=1,
        kind=MODULES,
        blueprints=(*STANDARD, "attention", "conv3x3", "depthwise"),
        needs_book=False,
    ),
    "varied": HostSet(_REGIONS, seeds_max=1),
}
