"""An episode on the terminal: a table that grows in place, or plain lines in a pipe.

Values that were not measured are blank, never 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from simic.contracts.actions import Action
from simic.contracts.episode import AttributionRecord, EpisodeRecord, EpochRecord, SlotRecord, WatchReport
from simic.contracts.lifecycle import ALIVE_STAGES, SeedStage
from simic.validation.palette import STAGE_COLOURS, op_words, stage_word

__all__ = [
    "attribution_lines",
    "decision_words",
    "episode_table",
    "governor_words",
    "live_view",
    "plain_epoch",
    "plain_summary",
    "sparkline",
    "summary",
]

_BAR_CELLS: Final = 4
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_LEVELS: Final = "▁▂▃▄▅▆▇█"
_TRAIL: Final = 8
"""Number of epochs in the sparkline of a row."""
_AROUND: Final = 5
"""Number of lines of a live view above and below its table, and one to spare."""
_UNBOUNDED: Final = 1000
"""Width in characters that no table exceeds."""
_MOST_UNLIKE: Final = 3
"""Number of measurements outside the training data that are named."""
_STAGES: Final = {
    SeedStage.GERMINATED: "germ",
    SeedStage.TRAINING: "train",
    SeedStage.BLENDING: "blend",
    SeedStage.HOLDING: "hold",
    SeedStage.FOSSILIZED: "kept",
    SeedStage.PRUNED: "prune",
    SeedStage.EMBARGOED: "rest",
    SeedStage.RESETTING: "reset",
}
_FELT: Final = ALIVE_STAGES | {SeedStage.FOSSILIZED}
"""Stages in which alpha is shown."""
_KEY: Final = (
    "Slots: stage, blueprint, alpha as a bar, contribution (points of validation accuracy with the seed minus without "
    "it, ± standard error; blank: not measured). val. %: validation accuracy; vs wait: points above the same host "
    "never grown; loss: of training."
)


class _Layout(NamedTuple):
    """Amount of detail in a table."""

    has_column_per_slot: bool
    """Whether all slots share a line; otherwise each used slot has its own."""
    has_trail: bool
    has_wait: bool


_LAYOUTS: Final = (
    _Layout(True, True, True),
    _Layout(False, True, True),
    _Layout(False, True, False),
    _Layout(False, False, False),
)
"""Details from the widest to the narrowest."""


def decision_words(action: Action) -> str:
    """Return the operation and its factors."""
    words = op_words(action.op)
    if action.slot is not None:
        words += f" slot {action.slot}"
    if action.blueprint is not None:
        words += f": {action.blueprint}, tempo {action.tempo}"
    if action.alpha_target is not None and action.alpha_curve is not None:
        pace = f"in {action.alpha_speed}" if action.alpha_speed else "at once"
        words += f": to {action.alpha_target:g} {pace}, {action.alpha_curve.value.lower()}"
    return words


def governor_words(record: EpochRecord) -> str | None:
    """Return the governor's event in one word; blank without one."""
    return None if record.governor is None else f"governor: {record.governor.kind.value.lower().replace('_', '-')}"


def sparkline(values: Sequence[float], low: float, high: float) -> str:
    """Return one block per value, from the lowest for ``low`` to the full one for ``high``."""
    span = (high - low) or 1.0
    top = len(_LEVELS) - 1
    return "".join(_LEVELS[round(top * min(1.0, max(0.0, (value - low) / span)))] for value in values)


def episode_table(epochs: Sequence[EpochRecord], wait: EpisodeRecord, width: int, last: int = 0) -> Table:
    """Return a row per epoch, or for the ``last`` ones only, with as much detail as fits ``width`` characters."""
    measure = Console(width=_UNBOUNDED, color_system=None)
    tables = (_table(epochs, wait, last, layout) for layout in _LAYOUTS)
    narrowest = _table(epochs, wait, last, _LAYOUTS[-1])
    return next((table for table in tables if measure.measure(table).maximum <= width), narrowest)


def live_view(
    epochs: Sequence[EpochRecord], wait: EpisodeRecord, horizon: int, console: Console, title: str
) -> RenderableType:
    """Return the newest epochs that fit the screen, and the history of both accuracies."""
    for shown in range(max(1, min(len(epochs), console.height - _AROUND)), 0, -1):
        table = episode_table(epochs, wait, console.width, shown)
        if len(console.render_lines(table, pad=False)) <= console.height - _AROUND:
            break
    ours = [wait.start_accuracy, *(record.validation_accuracy for record in epochs)]
    progress = Text(f"epoch {len(epochs)} of {horizon}", style="dim")
    return Group(Text(title, style="bold"), table, _curves(ours, wait.accuracy[: len(ours)], console.width), progress)


def summary(report: WatchReport, width: int) -> RenderableType:
    """Return the result of the episode, next to the same host never grown."""
    ours, theirs = report.episode, report.wait
    table = Table("", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for header in (ours.controller, "wait", "difference"):
        table.add_column(Text(header), justify="right")
    for name, own, other in _results(ours, theirs):
        table.add_row(name, f"{own:.1f}", f"{other:.1f}", _points(own - other))
    table.add_row("parameters kept", str(ours.committed_parameters), str(theirs.committed_parameters), "")
    ending = Text(_ending(ours), style="" if ours.epochs[-1].governor is None else "bold red")
    unlike = [Text(line, style="yellow") for line in _unlike_the_training(report)]
    curves = _curves(ours.accuracy, theirs.accuracy, width)
    return Group(Text(_KEY, style="dim"), Text(""), curves, table, ending, *unlike)


def plain_epoch(record: EpochRecord) -> str:
    """Return one epoch as a line of ASCII text."""
    loss = "" if record.train_loss is None else f"{record.train_loss:.3f}"
    parts = [
        f"epoch {record.epoch:3d}",
        f"validation accuracy {100 * record.validation_accuracy:5.1f} %",
        f"train loss {loss:>6}",
        decision_words(record.action),
    ]
    for number, slot in enumerate(record.slots):
        if slot.blueprint is not None:
            gain = _contribution(slot, " +- ")
            words = f"slot {number} {stage_word(slot.stage)} {slot.blueprint}, alpha {slot.alpha:.2f}"
            parts.append(f"{words}, contribution {gain}" if gain else words)
    event = governor_words(record)
    return " | ".join([*parts, event] if event is not None else parts)


def plain_summary(report: WatchReport) -> Iterator[str]:
    """Yield the result of the episode in lines of text."""
    yield _ending(report.episode)
    for name, own, other in _results(report.episode, report.wait):
        yield f"{name} | {own:.1f} | wait {other:.1f} | difference {_points(own - other)}"
    ours, theirs = report.episode, report.wait
    yield f"parameters kept | {ours.committed_parameters} | wait {theirs.committed_parameters}"
    yield from _unlike_the_training(report)


def _unlike_the_training(report: WatchReport) -> Iterator[str]:
    """Yield which measurements of the host were unlike the training: ``_MOST_UNLIKE`` of them, and how many more."""
    if report.out_of_range is None:
        if report.policy_digest is not None:
            yield "whether the host is unlike the training is unknown: the policy does not say what it learned from"
        return
    for measurement in report.out_of_range[:_MOST_UNLIKE]:
        yield f"unlike the training: {measurement}"
    if (more := len(report.out_of_range) - _MOST_UNLIKE) > 0:
        yield f"unlike the training: {more} more measurements; --json has them"


def attribution_lines(record: AttributionRecord) -> Iterator[str]:
    """Yield one line for the sum, one for each active seed and one for each pair, in points of validation accuracy."""
    gain = 100 * (record.everything - record.nothing)
    yield f"all seeds together | {_points(gain)} points of validation accuracy"
    for seed in record.seeds:
        alone = f"leave-one-out {_points(100 * seed.leave_one_out)}"
        yield f"slot {seed.slot} {seed.blueprint} | Shapley value {_points(100 * seed.shapley)} | {alone}"
    for pair in record.pairs:
        yield f"slots {pair.slots[0]} and {pair.slots[1]} | together minus alone {_points(100 * pair.interaction)}"


def _results(ours: EpisodeRecord, theirs: EpisodeRecord) -> list[tuple[str, float, float]]:
    tested = [] if ours.test_accuracy is None or theirs.test_accuracy is None else [(
        "test accuracy, %", 100 * ours.test_accuracy, 100 * theirs.test_accuracy
    )]  # fmt: skip
    return [
        ("committed validation accuracy, %", 100 * ours.committed_accuracy, 100 * theirs.committed_accuracy),
        *tested,
        ("return, points", ours.return_points, theirs.return_points),
    ]


def _curves(ours: Sequence[float], theirs: Sequence[float], width: int) -> Table:
    """Return both validation accuracies as sparklines of one scale, newest at the right, with the last value."""
    low, high = min([*ours, *theirs]), max([*ours, *theirs])
    lines = Table.grid(padding=(0, 2))
    for name, values in (("validation accuracy", ours), ("of the host never grown", theirs)):
        newest = values[-max(_TRAIL, width - 40) :]
        lines.add_row(name, sparkline(newest, low, high), f"{100 * values[-1]:.1f} %")
    return lines


def _ending(episode: EpisodeRecord) -> str:
    lasted, last = f"{len(episode.epochs)} of {episode.horizon} epochs", episode.epochs[-1]
    if last.governor is None:
        return f"Ran for {lasted}."
    return f"The governor ended it after {lasted}: {last.governor.message}; {', '.join(last.mitigation)}."


def _table(epochs: Sequence[EpochRecord], wait: EpisodeRecord, last: int, layout: _Layout) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    slots = [f"slot {slot}" for slot in range(wait.slots)] if layout.has_column_per_slot else ["slots in use"]
    table.add_column("epoch", justify="right", no_wrap=True)
    table.add_column("decision")
    table.add_column("val. %", justify="right", no_wrap=True)
    if layout.has_trail:
        table.add_column("", no_wrap=True)
    if layout.has_wait:
        table.add_column("vs wait", justify="right", no_wrap=True)
    table.add_column("loss", justify="right", no_wrap=True)
    for name in slots:
        table.add_column(name, no_wrap=True)
    accuracy = [wait.start_accuracy, *(record.validation_accuracy for record in epochs)]
    low, high = min(accuracy), max(accuracy)
    widest = max((len(slot.blueprint or "") for record in epochs for slot in record.slots), default=0)
    for record in epochs[-last:]:
        seen = accuracy[: record.epoch + 2]
        table.add_row(
            str(record.epoch),
            _decision(record),
            f"{100 * record.validation_accuracy:.1f}",
            *([sparkline(seen[-_TRAIL:], low, high)] if layout.has_trail else []),
            *([_over(record, wait)] if layout.has_wait else []),
            "" if record.train_loss is None else f"{record.train_loss:.3f}",
            *(_columns(record, widest) if layout.has_column_per_slot else [_stacked(record, widest)]),
        )
    return table


def _decision(record: EpochRecord) -> Text:
    words = decision_words(record.action)
    text = Text(words, style="dim" if record.action.slot is None else "bold")
    event = governor_words(record)
    return text if event is None else Text.assemble(text, "\n", (event, "bold red"))


def _over(record: EpochRecord, wait: EpisodeRecord) -> str:
    """Return points above the host never grown at the same age; blank if that one had ended."""
    if record.epoch >= len(wait.epochs):
        return ""
    return _points(100 * (record.validation_accuracy - wait.epochs[record.epoch].validation_accuracy))


def _points(value: float) -> str:
    """Format a signed number, without a negative zero."""
    return f"{round(value, 1) + 0.0:+.1f}"


def _columns(record: EpochRecord, blueprint_width: int) -> list[Text]:
    return [
        Text("·", style="dim") if slot.blueprint is None else _seed(slot, slot.blueprint, blueprint_width)
        for slot in record.slots
    ]


def _stacked(record: EpochRecord, blueprint_width: int) -> Text:
    """Return a line for each slot that is not empty."""
    lines = [
        Text.assemble(f"{number} ", _seed(slot, slot.blueprint, blueprint_width))
        for number, slot in enumerate(record.slots)
        if slot.blueprint is not None
    ]
    return Text("\n").join(lines) if lines else Text("·", style="dim")


def _seed(slot: SlotRecord, blueprint: str, blueprint_width: int) -> Text:
    return Text.assemble(
        f"{_STAGES[slot.stage]:<5} {blueprint:<{blueprint_width}} ",
        (_bar(slot.alpha), f"{STAGE_COLOURS[slot.stage]} on grey30" if slot.stage in _FELT else ""),
        f" {_contribution(slot, '±'):>9}",
    )


def _contribution(slot: SlotRecord, between: str) -> str:
    """Return the contribution in points with its standard error; empty if it was not measured."""
    if slot.contribution is None:
        return ""
    error = "" if slot.contribution_error is None else f"{between}{100 * slot.contribution_error:.1f}"
    return _points(100 * slot.contribution) + error


def _bar(share: float) -> str:
    """Return a bar for ``share`` of ``_BAR_CELLS`` cells, to an eighth of a cell; never empty above 0."""
    eighths = round(8 * _BAR_CELLS * share)
    whole, rest = divmod(max(eighths, 1) if share > 0 else 0, 8)
    return ("█" * whole + (_EIGHTHS[rest] if rest else "")).ljust(_BAR_CELLS)
