"""The figure of a comparison: a panel per pair, with the difference over all hosts first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes

from simic.contracts.results.comparison import Comparison, PairComparison
from simic.contracts.results.recipes import RecipeComparison
from simic.contracts.results.trials import Estimate
from simic.validation.palette import BLUE, SKY
from simic.validation.plots import draw_interval, new_figure, save, style_rows

__all__ = ["draw_comparison", "panels_of"]

_COLUMNS = 3
_ALL = "all hosts"


class PairPanel(NamedTuple):
    """One pair: differences with their intervals, top to bottom, the one that the verdict is about first."""

    title: str
    rows: Sequence[tuple[str, Estimate]]


def panels_of(comparison: Comparison | RecipeComparison) -> list[PairPanel]:
    """Return a panel per pair; those of recipes have a row per training seed too."""
    if isinstance(comparison, Comparison):
        return [_of_controllers(pair) for pair in comparison.pairs]
    return [_of_controllers(pair) for pair in comparison.policies] + [
        PairPanel(
            f"{pair.recipe}\nminus {pair.against}\n{pair.verdict.value}",
            [
                ("all trainings", pair.difference),
                *((f"seed {seed}", estimate) for seed, estimate in zip(comparison.seeds, pair.by_seed, strict=True)),
                *pair.by_family.items(),
            ],
        )
        for pair in comparison.pairs
    ]


def _of_controllers(pair: PairComparison) -> PairPanel:
    title = f"{pair.controller}\nminus {pair.against}\n{pair.verdict.value}"
    return PairPanel(title, [(_ALL, pair.difference), *pair.by_family.items()])


def draw_comparison(comparison: Comparison | RecipeComparison, path: Path) -> Path:
    """Draw the differences of all pairs with their intervals as a PNG file."""
    panels = panels_of(comparison)
    columns = max(1, min(len(panels), _COLUMNS))
    lines = max(1, -(-len(panels) // columns))
    figure = new_figure(4.2 * columns, (1.2 + 0.32 * max((len(panel.rows) for panel in panels), default=1)) * lines)
    axes = figure.subplots(lines, columns, squeeze=False).ravel().tolist()
    for place, panel in zip(axes, panels, strict=False):
        _draw(place, panel)
    for place in axes[len(panels) :]:
        place.remove()
    return save(figure, path)


def _draw(axes: Axes, panel: PairPanel) -> None:
    for row, (_, estimate) in enumerate(panel.rows):
        colour, marker = (BLUE, "D") if row == 0 else (SKY, "o")
        draw_interval(axes, estimate, row, colour, marker)
    style_rows(axes, [name for name, _ in panel.rows])
    axes.set_xlabel("difference of returns, points", fontsize=8)
    axes.set_title(panel.title, loc="left", fontsize=8)
