"""The figure of compared trainings: a row per arm, with the difference of every seed and their mean."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simic.contracts.results.trials import Estimate
from simic.validation.palette import BLUE, SKY
from simic.validation.plots import draw_interval, new_figure, save, style_rows

__all__ = ["draw_trainings"]


def draw_trainings(first: str, rows: Sequence[tuple[str, Estimate, NDArray[np.float64]]], path: Path) -> Path:
    """Draw each arm's difference to ``first``, its interval and its differences [n] by seed as a PNG file."""
    figure = new_figure(6.4, 1.3 + 0.5 * len(rows))
    axes = figure.subplots()
    for row, (_, mean, by_seed) in enumerate(rows):
        # Spread over the height of the row, so that equal differences do not hide each other.
        places = row + 0.5 * (np.arange(len(by_seed)) + 0.5) / len(by_seed) - 0.25
        axes.plot(by_seed, places, color=SKY, marker="o", linestyle="", markersize=4, alpha=0.8)
        draw_interval(axes, mean, row, BLUE, "D")
    style_rows(axes, [arm for arm, _, _ in rows])
    axes.set_xlabel(f"score minus that of {first}, same seeds", fontsize=8)
    return save(figure, path)
