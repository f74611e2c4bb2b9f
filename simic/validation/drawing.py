"""What all pictures have in common: figures, handles of legends, axes, files."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

__all__ = ["handle", "new_figure", "save", "tidy"]

_DPI = 130


def new_figure(width: float, height: float) -> Figure:
    """Of so many inches; unknown to pyplot, so nothing keeps it alive once it is saved."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def handle(colour: str, marker: str, label: str) -> Line2D:
    """A mark in a legend."""
    size = 11 if marker == "*" else 8
    return Line2D(
        [], [], color=colour, marker=marker, linestyle="", markeredgecolor="white", markersize=size, label=label
    )


def tidy(axes: Axes) -> None:
    """A frame of two sides and a quiet grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, color="#EEEEEE", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)


def save(figure: Figure, path: Path) -> Path:
    """As PNG, in folders made where they are missing; equal figures give equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=_DPI, metadata={"Software": None})
    return path
