"""Timelines of episodes: decisions, stages of each slot, and accuracy over epochs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from textwrap import fill
from typing import Final, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.patheffects import withStroke

from simic.contracts.actions import Op
from simic.contracts.episode import EpisodeRecord
from simic.contracts.lifecycle import SeedStage
from simic.validation.palette import BLACK, RED, STAGE_COLOURS, op_words, stage_word
from simic.validation.plots import legend_mark, new_figure, save, style_axes

__all__ = ["action_timeline"]

_WIDTH: Final = 11.0
_LANE_WIDTH: Final = 8.2
"""Approximate width of the axes, without labels and legend; all sizes here are in inches."""
_LANE: Final = 0.3
_ACCURACY: Final = 0.85
_GAPS: Final = 0.55
"""Space between the panels of two episodes."""
_LETTER: Final = 0.06
"""Width of a letter of a seed's name."""
_TITLE_LETTERS: Final = 95
"""Largest number of letters in a line of the title."""
_INDENT: Final = 0.012
"""Offset of a seed's name from the mark of its germination, as a share of the axes."""
_STRIP: Final = 0.16
"""Share of a lane that shows the stage at any alpha; alpha 1 fills the lane up to ``_TOP``."""
_TOP: Final = 0.9
_MARKERS: Final = {Op.GERMINATE: "o", Op.ADVANCE: ">", Op.SET_ALPHA_TARGET: "D", Op.FOSSILIZE: "s", Op.PRUNE: "X"}


class _Cell(NamedTuple):
    """One slot during one epoch."""

    epoch: int
    stage: SeedStage
    alpha: float


class _Seed(NamedTuple):
    """One seed, from germination until its slot is empty again."""

    slot: int
    blueprint: str
    cells: list[_Cell]


def action_timeline(episodes: Sequence[EpisodeRecord], path: Path, title: str) -> Path:
    """Draw episodes below each other as a PNG: slots are lanes, alpha is height, decisions are marks."""
    heights = [size for episode in episodes for size in (_ACCURACY, _LANE * max(1, episode.slots))]
    figure = new_figure(_WIDTH, 0.8 + sum(heights) + _GAPS * len(episodes))
    panels = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0].tolist()
    horizon = max(episode.horizon for episode in episodes)
    short = _short_names(seed.blueprint for episode in episodes for seed in _seeds(episode))
    abbreviated: dict[str, str] = {}
    for episode, (accuracy, lanes) in zip(episodes, zip(panels[::2], panels[1::2], strict=True), strict=True):
        _draw_accuracy(accuracy, episode)
        abbreviated |= _draw_lanes(lanes, episode, short, horizon)
    last = panels[-1]
    last.set_xlim(-0.02 * horizon, 1.01 * horizon)
    last.set_xticks(range(0, horizon + 1, max(1, horizon // 10)))
    last.set_xlabel("epochs trained", fontsize=9)
    figure.suptitle(fill(title, _TITLE_LETTERS), x=0.01, ha="left", fontsize=11)
    _draw_legend(figure, abbreviated, has_panic=any(episode.epochs[-1].governor for episode in episodes))
    return save(figure, path)


def _draw_legend(figure: Figure, abbreviated: dict[str, str], *, has_panic: bool) -> None:
    entries: list[Patch | object] = [
        Patch(color=colour, label=stage_word(stage)) for stage, colour in STAGE_COLOURS.items()
    ]
    entries.append(Patch(color="none", label="height: alpha"))
    entries += [legend_mark(BLACK, marker, op_words(op)) for op, marker in _MARKERS.items()]
    entries.append(legend_mark(BLACK, "*", "accuracy of the network that is kept"))
    if has_panic:
        entries.append(legend_mark(RED, "X", "governor ended it"))
    entries += [Patch(color="none", label=f"{letters}: {name}") for name, letters in sorted(abbreviated.items())]
    figure.legend(handles=entries, loc="outside right upper", frameon=False, fontsize=8)


def _draw_accuracy(axes: Axes, episode: EpisodeRecord) -> None:
    """Draw the accuracy of the running network as a line, and that of the kept network as a mark at its end."""
    percent, kept = [100 * value for value in episode.accuracy], 100 * episode.committed_accuracy
    end = len(percent) - 1
    axes.plot(range(len(percent)), percent, color=BLACK, linewidth=1.2)
    axes.plot(end, kept, color=BLACK, marker="*", markersize=10, markeredgecolor="white", clip_on=False, zorder=5)
    axes.annotate(
        f"{kept:.0f} %", (end, kept), xytext=(7, 0), textcoords="offset points", fontsize=8, va="center",
        annotation_clip=False,
    )  # fmt: skip
    if episode.epochs[-1].governor is not None:
        axes.plot(end, percent[-1], color=RED, marker="X", markersize=8, markeredgecolor="white", zorder=6)
        axes.axvline(end, color=RED, linewidth=1.0, linestyle=":")
    low, high = min([*percent, kept]), max([*percent, kept])
    room = max(5.0, 0.12 * (high - low))
    axes.set_ylim(low - room, high + room)
    axes.locator_params(axis="y", nbins=3)
    axes.set_ylabel("val. acc. %", fontsize=8)
    axes.set_title(_headline(episode), fontsize=9, fontweight="bold", loc="left", pad=3)
    style_axes(axes)
    axes.tick_params(bottom=False, labelsize=7)


def _headline(episode: EpisodeRecord) -> str:
    return f"host {episode.host.key}, family {episode.host.family}: return {episode.return_points:.1f} points"


def _draw_lanes(axes: Axes, episode: EpisodeRecord, short: dict[str, str], horizon: int) -> dict[str, str]:
    """Draw slots from the top; a cell spans its epoch. Returns the names that were abbreviated."""
    abbreviated: dict[str, str] = {}
    floors = {slot: episode.slots - 1 - slot for slot in range(episode.slots)}
    per_letter = _LETTER * horizon / _LANE_WIDTH
    seeds = list(_seeds(episode))
    for seed in seeds:
        floor, start = floors[seed.slot], seed.cells[0].epoch
        for cell in seed.cells:
            height = _STRIP + (_TOP - _STRIP) * cell.alpha
            axes.add_patch(Rectangle((cell.epoch, floor), 1, height, facecolor=STAGE_COLOURS[cell.stage], linewidth=0))
        later = (other.cells[0].epoch for other in seeds if other.slot == seed.slot)
        room = min((epoch for epoch in later if epoch > start), default=horizon) - start - _INDENT * horizon
        name = next(
            (name for name in (seed.blueprint, short[seed.blueprint]) if len(name) * per_letter <= room),
            short[seed.blueprint],
        )
        if name != seed.blueprint:
            abbreviated[seed.blueprint] = name
        axes.text(
            start + _INDENT * horizon, floor + 0.56, name, fontsize=7.5, va="center", zorder=4,
            path_effects=[withStroke(linewidth=2.0, foreground="white")],
        )  # fmt: skip
    for record in episode.epochs:
        if record.action.slot is not None:
            axes.plot(
                record.epoch, floors[record.action.slot] + 0.12, marker=_MARKERS[record.action.op], color=BLACK,
                markersize=5.5, markeredgecolor="white", markeredgewidth=0.7, zorder=5, linestyle="", clip_on=False,
            )  # fmt: skip
    _frame_lanes(axes, episode.slots)
    return abbreviated


def _frame_lanes(axes: Axes, slots: int) -> None:
    for floor in range(slots):
        axes.axhspan(floor, floor + _TOP, color="#F6F6F6", zorder=0, linewidth=0)
    axes.set_ylim(-0.08, slots)
    axes.set_yticks([slots - 1 - slot + _TOP / 2 for slot in range(slots)])
    style_axes(axes)
    axes.set_yticklabels([f"slot {slot}" for slot in range(slots)], fontsize=7)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False)


def _seeds(episode: EpisodeRecord) -> Iterator[_Seed]:
    """Return every seed of an episode, slot by slot; each germination begins a new one."""
    for slot in range(episode.slots):
        seed: _Seed | None = None
        for record in episode.epochs:
            slot_record, action = record.slots[slot], record.action
            is_born = action.op is Op.GERMINATE and action.slot == slot
            if seed is not None and (is_born or slot_record.blueprint is None):
                yield seed
                seed = None
            if slot_record.blueprint is not None:
                seed = seed or _Seed(slot, slot_record.blueprint, [])
                seed.cells.append(_Cell(record.epoch, slot_record.stage, slot_record.alpha))
        if seed is not None:
            yield seed


def _short_names(names: Iterable[str]) -> dict[str, str]:
    """Return the shortest unambiguous beginning of each name; a name that is the beginning of another stays whole."""
    known = sorted(set(names))
    return {
        name: next(
            (name[:size] for size in range(1, len(name)) if sum(other.startswith(name[:size]) for other in known) == 1),
            name,
        )
        for name in known
    }
