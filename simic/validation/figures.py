"""Pictures of a validation, as PNG files; colours are those of Okabe and Ito, which most eyes can tell apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from simic.contracts.actions import Op
from simic.contracts.lifecycle import SeedStage
from simic.contracts.receipts import ControllerTrial, Estimate, TrialReport
from simic.runtime.telemetry import read_metrics
from simic.validation.tracks import Track

__all__ = ["action_timeline", "learning_curves", "paired_differences"]

DPI = 130
_BLACK, _ORANGE, _SKY, _GREEN, _YELLOW, _BLUE, _RED, _PINK, _GREY = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#9A9A9A",
)  # fmt: skip
_CONTROLLER_STYLE = {
    "candidate": (_BLUE, "o"),
    "champion": (_PINK, "s"),
    "blind": (_ORANGE, "^"),
    "heuristic": (_GREEN, "D"),
    "random": (_GREY, "v"),
    "oracle": (_BLACK, "*"),
}
_STAGE_COLOUR = {
    SeedStage.GERMINATED: _YELLOW,
    SeedStage.TRAINING: _SKY,
    SeedStage.BLENDING: _ORANGE,
    SeedStage.HOLDING: _GREEN,
    SeedStage.FOSSILIZED: _BLUE,
    SeedStage.PRUNED: _RED,
    SeedStage.EMBARGOED: _GREY,
    SeedStage.RESETTING: "#D9D9D9",
}
_OP_MARKER = {
    Op.GERMINATE: "o",
    Op.ADVANCE: ">",
    Op.SET_ALPHA_TARGET: "D",
    Op.FOSSILIZE: "s",
    Op.PRUNE: "X",
}
_CURVES = (
    "cloning_gap", "value_fit_explained_variance", "explained_variance", "value_loss", "policy_loss", "advantage_sd",
    "entropy_op", "entropy_slot", "entropy_blueprint", "mean_ratio", "effective_sample_share", "commit_rate",
)  # fmt: skip
"""Of the series a training logs, in the order in which one asks; the curves in MLflow have them all."""
_SMOOTHING = 20
_ALL_HOSTS = "all hosts"
_IDLE_HEIGHT = 0.12
"""Height of a lane at alpha 0, so that a seed in isolation can still be seen."""


def paired_differences(report: TrialReport, path: Path) -> Path:
    """Return over never growing, by family and over all hosts, one mark and interval per controller."""
    groups = [*sorted(set(report.families)), _ALL_HOSTS]
    trials = sorted(
        (trial for trial in report.controllers if trial.over_wait is not None),
        key=lambda trial: _order(trial.controller),
    )
    figure = _figure(9.0, 1.2 + 0.95 * len(groups))
    axes = figure.subplots()
    for index, trial in enumerate(trials):
        colour, marker = _CONTROLLER_STYLE.get(trial.controller, (_RED, "P"))
        offset = 0.36 * (2 * index / max(1, len(trials) - 1) - 1)
        for row, group in enumerate(groups):
            estimate = _estimate(trial, group)
            if estimate is not None:
                _whisker(axes, estimate, row + offset, colour, marker)
    for row in range(1, len(groups)):
        axes.axhline(row - 0.5, color="#E5E5E5", linewidth=0.8, zorder=0)
    axes.axhspan(len(groups) - 1.5, len(groups) - 0.5, color="#F4F6F8", zorder=0)
    axes.axvline(0.0, color=_BLACK, linewidth=1.0)
    axes.set_yticks(range(len(groups)), groups)
    axes.set_ylim(len(groups) - 0.5, -0.5)
    confidence = next((trial.over_wait.confidence for trial in trials if trial.over_wait is not None), math.nan)
    axes.set_xlabel(f"return over never growing, points (paired by host; bars: {confidence:.0%} bootstrap interval)")
    axes.set_title(f"What each controller adds, {len(report.host_keys)} held-out hosts of set {report.set}", loc="left")
    handles = [_handle(*_CONTROLLER_STYLE.get(t.controller, (_RED, "P")), t.controller) for t in trials]
    axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return _save(figure, axes, path)


def action_timeline(tracks: Sequence[Track], horizon: int, path: Path, title: str) -> Path:
    """Episodes below each other: the slots as lanes, alpha as height, decisions as marks, accuracy as a line."""
    figure = _figure(10.5, 0.9 + 1.75 * len(tracks))
    all_axes = figure.subplots(2 * len(tracks), 1, sharex=True, height_ratios=[1.0, 1.25] * len(tracks), squeeze=False)
    for index, track in enumerate(tracks):
        _draw_accuracy(all_axes[2 * index][0], track)
        _draw_lanes(all_axes[2 * index + 1][0], track)
    last = all_axes[-1][0]
    last.set_xlim(-0.1, horizon + 0.1)
    last.set_xticks(range(0, horizon + 1, max(1, horizon // 10)))
    last.set_xlabel("epoch")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    stages = [Patch(color=colour, label=stage.value.lower()) for stage, colour in _STAGE_COLOUR.items()]
    marks = [_handle(_BLACK, marker, op.value.lower().replace("_", " ")) for op, marker in _OP_MARKER.items()]
    figure.legend(handles=[*stages, *marks], loc="outside right upper", frameon=False, fontsize=8)
    return _save(figure, None, path)


def learning_curves(curves: Path, path: Path) -> Path:
    """What tells a healthy training from a sick one, a panel each: every update, and over it a running mean."""
    series: dict[str, tuple[list[int], list[float]]] = {}
    for step, metrics in read_metrics(curves):
        for name, value in metrics.items():
            steps, values = series.setdefault(name.removeprefix("train/"), ([], []))
            steps.append(step)
            values.append(value)
    names = [name for name in _CURVES if name in series] or sorted(series)
    columns = min(4, max(1, len(names)))
    rows = max(1, math.ceil(len(names) / columns))
    figure = _figure(3.1 * columns, 2.0 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for panel, name in zip(panels, names, strict=False):
        steps, values = series[name]
        for part in _unbroken(steps):
            panel.plot(steps[part], values[part], color=_SKY, linewidth=0.6, alpha=0.6)
            panel.plot(steps[part], _running_mean(values[part]), color=_BLUE, linewidth=1.2, marker=_dot(part))
        panel.set_title(name.replace("_", " "), fontsize=9, loc="left")
        _tidy(panel)
    for panel in panels[len(names) :]:
        panel.set_axis_off()
    figure.suptitle("Training, by update", x=0.01, ha="left", fontsize=11)
    return _save(figure, None, path)


def _unbroken(steps: Sequence[int]) -> list[slice]:
    """Stretches of consecutive updates; a phase that logs nothing leaves a gap, not a line across it."""
    ends = [index for index in range(1, len(steps)) if steps[index] != steps[index - 1] + 1]
    return [slice(start, end) for start, end in zip([0, *ends], [*ends, len(steps)], strict=True)]


def _running_mean(values: Sequence[float]) -> list[float]:
    """Over at most ``_SMOOTHING`` updates up to each."""
    sums = np.cumsum([0.0, *values])
    ends = np.arange(1, len(sums))
    starts = np.maximum(ends - _SMOOTHING, 0)
    means: list[float] = ((sums[ends] - sums[starts]) / (ends - starts)).tolist()
    return means


def _dot(part: slice) -> str:
    return "." if part.stop - part.start < 5 else ""


def _order(controller: str) -> tuple[int, str]:
    names = list(_CONTROLLER_STYLE)
    return (names.index(controller) if controller in names else len(names), controller)


def _estimate(trial: ControllerTrial, group: str) -> Estimate | None:
    if group == _ALL_HOSTS:
        return trial.over_wait
    return trial.by_family[group].over_wait if group in trial.by_family else None


def _whisker(axes: Axes, estimate: Estimate, row: float, colour: str, marker: str) -> None:
    axes.plot([estimate.lower, estimate.upper], [row, row], color=colour, linewidth=1.6, solid_capstyle="round")
    size = 9 if marker == "*" else 6
    axes.plot(estimate.mean, row, color=colour, marker=marker, markersize=size, markeredgecolor="white")


def _draw_accuracy(axes: Axes, track: Track) -> None:
    percent = [100 * value for value in track.accuracy]
    axes.plot(range(len(percent)), percent, color=_BLACK, linewidth=1.2)
    axes.plot(len(percent) - 1, percent[-1], color=_BLACK, marker="o", markersize=4)
    axes.annotate(
        f"{percent[-1]:.0f} %", (len(percent) - 1, percent[-1]), xytext=(6, 0), textcoords="offset points",
        fontsize=7, va="center", annotation_clip=False,
    )  # fmt: skip
    axes.margins(y=0.2)
    axes.set_ylabel("val. %", fontsize=8)
    axes.set_title(f"{track.host.family}, host {track.host.key}", fontsize=9, fontweight="bold", loc="left", pad=2)
    _tidy(axes)
    axes.tick_params(bottom=False, labelsize=7)


def _draw_lanes(axes: Axes, track: Track) -> None:
    """Slot 0 on top; a cell spans its epoch and grows from the lane's floor with alpha."""
    named: set[tuple[int, str]] = set()
    for lane in sorted(track.lanes):
        height = _IDLE_HEIGHT + (0.82 - _IDLE_HEIGHT) * lane.alpha
        floor = track.slots - 1 - lane.slot
        axes.add_patch(Rectangle((lane.epoch, floor), 1.0, height, facecolor=_STAGE_COLOUR[lane.stage], linewidth=0))
        if lane.blueprint is not None and (lane.slot, lane.blueprint) not in named:
            named.add((lane.slot, lane.blueprint))
            axes.text(lane.epoch + 0.15, floor + 0.6, lane.blueprint, fontsize=7, va="center", zorder=4)
    for decision in track.decisions:
        axes.plot(
            decision.epoch, track.slots - 1 - decision.slot + 0.25, marker=_OP_MARKER[decision.op], color=_BLACK,
            markersize=4.5, markeredgecolor="white", markeredgewidth=0.5, zorder=5, linestyle="",
        )  # fmt: skip
    for floor in range(1, track.slots):
        axes.axhline(floor - 0.06, color="#E5E5E5", linewidth=0.8, zorder=0)
    axes.set_ylim(-0.06, track.slots - 0.06)
    axes.set_yticks([track.slots - 0.6 - slot for slot in range(track.slots)])
    axes.set_yticklabels([f"slot {slot}" for slot in range(track.slots)], fontsize=7)
    _tidy(axes)
    axes.grid(visible=False)


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _handle(colour: str, marker: str, label: str) -> Line2D:
    return Line2D([], [], color=colour, marker=marker, linestyle="", markeredgecolor="white", markersize=8, label=label)


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, color="#EEEEEE", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)


def _save(figure: Figure, axes: Axes | None, path: Path) -> Path:
    if axes is not None:
        _tidy(axes)
        axes.grid(visible=False, axis="y")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI, metadata={"Software": None})
    return path
