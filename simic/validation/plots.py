"""Figures of a validation as PNG files: paired differences and learning curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from simic.contracts.names import BLIND, CANDIDATE, CHAMPION, HEURISTIC, ORACLE, RANDOM, SYMPTOM
from simic.contracts.results.trials import ControllerTrial, Estimate, TrialReport
from simic.runtime.telemetry import read_metrics
from simic.validation.palette import BLACK, BLUE, GREEN, GREY, ORANGE, PINK, RED, SKY
from simic.validation.table import controller_rank, families_in_order

__all__ = [
    "draw_interval",
    "learning_curves",
    "legend_mark",
    "new_figure",
    "paired_differences",
    "save",
    "style_axes",
    "style_rows",
]

_DPI = 130


def new_figure(width: float, height: float) -> Figure:
    """Return a figure of that size in inches, not registered with pyplot, so it is freed after saving."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def legend_mark(colour: str, marker: str, label: str) -> Line2D:
    """Return a marker for a legend."""
    size = 11 if marker == "*" else 8
    return Line2D(
        [], [], color=colour, marker=marker, linestyle="", markeredgecolor="white", markersize=size, label=label
    )


def style_axes(axes: Axes) -> None:
    """Style axes with two spines and a light grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, color="#EEEEEE", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)


def style_rows(axes: Axes, names: Sequence[str]) -> None:
    """Style axes that have a named row per integer, from top to bottom, and draw the line at 0."""
    axes.axvline(0.0, color=BLACK, linewidth=1.0)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    style_axes(axes)
    axes.grid(visible=False, axis="y")


def draw_interval(axes: Axes, estimate: Estimate, row: float, colour: str, marker: str, size: float = 6.0) -> None:
    """Draw an interval as a bar in a row, with a marker of ``size`` points at the mean."""
    axes.plot([estimate.lower, estimate.upper], [row, row], color=colour, linewidth=1.6, solid_capstyle="round")
    axes.plot(estimate.mean, row, color=colour, marker=marker, markersize=size, markeredgecolor="white")


def save(figure: Figure, path: Path) -> Path:
    """Save a figure as PNG, creating folders; equal figures give equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=_DPI, metadata={"Software": None})
    return path


_CONTROLLER_STYLE = {
    CANDIDATE: (BLUE, "o"),
    CHAMPION: (PINK, "s"),
    BLIND: (ORANGE, "^"),
    SYMPTOM: (SKY, "P"),
    HEURISTIC: (GREEN, "D"),
    RANDOM: (GREY, "v"),
    ORACLE: (BLACK, "*"),
}
_CURVES = (
    "expected_regret", "greedy_regret", "fitted_regret", "q_error", "decision_entropy", "following_loss", "cloning_gap",
    "value_fit_explained_variance", "explained_variance", "value_loss", "policy_loss", "advantage_sd", "entropy_op",
    "entropy_slot", "entropy_blueprint", "mean_ratio", "effective_sample_share", "kl", "commit_rate",
)  # fmt: skip
"""Series that are plotted, in order; MLflow has all curves."""
_SMOOTHING = 21
"""Updates in the mean of a curve, an odd number."""
_ALL_HOSTS = "all hosts"


def paired_differences(report: TrialReport, path: Path) -> Path:
    """Draw each controller's return over ``wait``, by family and over all hosts, with intervals."""
    groups = [*families_in_order(report.set, report.families), _ALL_HOSTS]
    trials = sorted(
        (trial for trial in report.controllers if trial.over_wait is not None),
        key=lambda trial: controller_rank(trial.controller),
    )
    figure = new_figure(9.0, 1.2 + 0.95 * len(groups))
    axes = figure.subplots()
    for index, trial in enumerate(trials):
        colour, marker = _CONTROLLER_STYLE.get(trial.controller, (RED, "P"))
        offset = 0.36 * (2 * index / max(1, len(trials) - 1) - 1)
        for row, group in enumerate(groups):
            estimate = _estimate(trial, group)
            if estimate is not None:
                draw_interval(axes, estimate, row + offset, colour, marker, 9.0 if marker == "*" else 6.0)
    for row in range(1, len(groups)):
        axes.axhline(row - 0.5, color="#E5E5E5", linewidth=0.8, zorder=0)
    axes.axhspan(len(groups) - 1.5, len(groups) - 0.5, color="#F4F6F8", zorder=0)
    style_rows(axes, groups)
    confidence = next((trial.over_wait.confidence for trial in trials if trial.over_wait is not None), math.nan)
    axes.set_xlabel(f"return over never growing, points (paired by host; bars: {100 * confidence:g}% interval)")
    axes.set_title(f"What each controller adds, {len(report.host_keys)} held-out hosts of set {report.set}", loc="left")
    handles = [legend_mark(*_CONTROLLER_STYLE.get(t.controller, (RED, "P")), t.controller) for t in trials]
    axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return save(figure, path)


def learning_curves(curves: Path, path: Path) -> Path:
    """Draw the diagnostic curves of a training run, one panel each: every update, and the mean of those around it."""
    series: dict[str, tuple[list[int], list[float]]] = {}
    for step, metrics in read_metrics(curves):
        for name, value in metrics.items():
            steps, values = series.setdefault(name.removeprefix("train/"), ([], []))
            steps.append(step)
            values.append(value)
    names = [name for name in _CURVES if name in series] or sorted(series)
    columns = min(4, max(1, len(names)))
    rows = max(1, math.ceil(len(names) / columns))
    figure = new_figure(3.1 * columns, 2.0 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for panel, name in zip(panels, names, strict=False):
        steps, values = series[name]
        for part in _unbroken(steps):
            panel.plot(steps[part], values[part], color=SKY, linewidth=0.6, alpha=0.6)
            panel.plot(steps[part], _running_mean(values[part]), color=BLUE, linewidth=1.2, marker=_dot(part))
        panel.set_title(name.replace("_", " "), fontsize=9, loc="left")
        style_axes(panel)
    for panel in panels[len(names) :]:
        panel.set_axis_off()
    title = f"Training, by update: thin each one, thick the mean of {_SMOOTHING} around it"
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return save(figure, path)


def _unbroken(steps: Sequence[int]) -> list[slice]:
    """Return stretches of consecutive updates, so that a phase without records leaves a gap."""
    ends = [index for index in range(1, len(steps)) if steps[index] != steps[index - 1] + 1]
    return [slice(start, end) for start, end in zip([0, *ends], [*ends, len(steps)], strict=True)]


def _running_mean(values: Sequence[float]) -> list[float]:
    """Return the mean over at most ``_SMOOTHING`` updates around each; fewer at both ends."""
    sums, half = np.cumsum([0.0, *values]), _SMOOTHING // 2
    centres = np.arange(len(values))
    starts, ends = np.maximum(centres - half, 0), np.minimum(centres + half + 1, len(values))
    means: list[float] = ((sums[ends] - sums[starts]) / (ends - starts)).tolist()
    return means


def _dot(part: slice) -> str:
    return "." if part.stop - part.start < 5 else ""


def _estimate(trial: ControllerTrial, group: str) -> Estimate | None:
    if group == _ALL_HOSTS:
        return trial.over_wait
    return trial.by_family[group].over_wait if group in trial.by_family else None
