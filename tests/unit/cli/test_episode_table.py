"""An episode as people see it: aligned, complete, and blank where nothing was measured."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, RenderableType
from support.builders.episodes import EMPTY, WAIT, advance, episode, epoch, germinate, panicked, slot, watched

from simic.cli.episode_table import (
    decision_words,
    episode_table,
    live_view,
    plain_epoch,
    plain_summary,
    sparkline,
    summary,
)
from simic.contracts.actions import Action, Op
from simic.contracts.episode import EpochRecord
from simic.contracts.feature_ranges import OutOfRange
from simic.contracts.lifecycle import SeedStage

NEVER = episode(
    [epoch(number, 0.2 + 0.01 * number) for number in range(20)],
    controller="wait", committed_accuracy=0.45, test_accuracy=0.42, committed_parameters=0, return_points=30.0,
)  # fmt: skip
BORN = epoch(0, 0.25, germinate(1), (EMPTY, slot(SeedStage.TRAINING), EMPTY))
FELT = epoch(1, 0.30, advance(1), (EMPTY, slot(SeedStage.BLENDING, alpha=0.5, gain=0.0), EMPTY))
HELD = epoch(2, 0.40, WAIT, (EMPTY, slot(SeedStage.HOLDING, alpha=1.0, gain=0.031), EMPTY))
STORY = [BORN, FELT, HELD]


def text(thing: RenderableType, width: int = 140, height: int = 40) -> str:
    sink = io.StringIO()
    Console(file=sink, width=width, height=height, highlight=False).print(thing)
    return sink.getvalue()


def row(epochs: list[EpochRecord], number: int, width: int = 140) -> str:
    lines = text(episode_table(epochs, NEVER, width), width).splitlines()
    (found,) = (line for line in lines if line.split()[:1] == [str(number)])
    return found


def test_decisions_are_told_with_the_factors_that_belong_to_them() -> None:
    assert decision_words(WAIT) == "wait"
    assert decision_words(germinate(1)) == "germinate slot 1: gate, tempo 5"
    assert decision_words(advance(2)) == "advance slot 2: to 0.7 in 3, cosine"
    assert decision_words(advance(2, speed=0)) == "advance slot 2: to 0.7 at once, cosine"
    assert decision_words(Action(op=Op.FOSSILIZE, slot=0)) == "fossilise slot 0"
    assert decision_words(Action(op=Op.PRUNE, slot=0)) == "prune slot 0"


def test_an_epoch_is_a_row_with_all_that_was_measured() -> None:
    told = "2 wait 40.0 ▁▄▆█ +18.0 1.250 · hold gate ████ +3.1±1.0 ·"
    assert row(STORY, 2).split() == told.split()
    assert "advance slot 1: to 0.7 in 3, cosine" in row(STORY, 1)
    assert "██" in row(STORY, 1)
    assert "███" not in row(STORY, 1)


def test_a_contribution_of_zero_is_shown_and_an_unmeasured_one_is_blank() -> None:
    assert "+0.0" in row(STORY, 1)
    assert row(STORY, 0).split()[-4:] == ["·", "train", "gate", "·"]
    assert "contribution +0.0 +- 1.0" in plain_epoch(FELT)
    assert "contribution" not in plain_epoch(BORN)
    assert plain_epoch(BORN).endswith("slot 1 training gate, alpha 0.00")
    tiny = epoch(1, 0.3, WAIT, (slot(SeedStage.HOLDING, alpha=1.0, gain=-0.0001), EMPTY, EMPTY))
    assert "-0.0" not in plain_epoch(tiny) + row([BORN, tiny], 1)


def test_where_the_governor_stepped_in_the_loss_is_blank_and_the_event_is_told() -> None:
    stopped = episode([*STORY, panicked(epoch(3, 0.4, germinate(0), (slot(SeedStage.PRUNED), EMPTY, EMPTY)))])
    table = text(episode_table(stopped.epochs, NEVER, 140))
    assert row(list(stopped.epochs), 3).split()[-5:] == ["+17.0", "prune", "gate", "·", "·"]
    assert "governor: non-finite" in table
    line = plain_epoch(stopped.epochs[-1])
    assert line.endswith("governor: non-finite")
    assert "train loss        |" in line
    ended = text(summary(watched(stopped, NEVER), 140), 200)
    message = "The governor ended it after 4 of 20 epochs: a loss or a parameter is not finite; rolled back to the last"
    assert message in ended
    assert message in next(plain_summary(watched(stopped, NEVER)))


def test_beyond_the_end_of_the_host_never_grown_nothing_is_compared() -> None:
    short = NEVER.model_copy(update={"epochs": NEVER.epochs[:1]})
    lines = text(episode_table(STORY, short, 140)).splitlines()
    assert any("+5.0" in line for line in lines)
    assert not any(f"+{points}" in line for line in lines for points in ("9.0", "18.0"))


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_every_row_is_whole_at_any_width(width: int) -> None:
    """Three slots in use: nothing is cut off, neither decision nor accuracy, loss, stage or contribution."""
    busy = [slot(SeedStage.HOLDING, "bottleneck", alpha=1.0, gain=0.123)] * 3
    epochs = [epoch(number, 0.4, germinate(1, "bottleneck"), busy) for number in range(3)]
    shown = text(episode_table(epochs, NEVER, width), width)
    assert max(map(len, shown.splitlines())) <= width
    assert shown.count("+12.3") == shown.count("hold") == shown.count("████") == 9
    for word in ("40.0", "1.250", "germinate"):
        assert shown.count(word) == 3, word
    assert "…" not in shown


def test_the_live_view_fits_the_screen_and_shows_the_newest() -> None:
    epochs = [epoch(number, number / 300, germinate(0)) for number in range(300)]
    for height in (14, 24, 50):
        console = Console(file=io.StringIO(), width=100, height=height, highlight=False)
        long = episode(epochs, horizon=300, controller="wait")
        view = live_view(epochs[:70], long, 300, console, "somebody on host 1")
        lines = text(view, 100, height).splitlines()
        assert len(lines) <= height
        assert any(line.split()[:1] == ["69"] for line in lines)
        assert "somebody on host 1" in lines[0]
        assert "epoch 70 of 300" in lines[-1]


def test_the_end_stands_beside_the_host_never_grown() -> None:
    lines = [line.split() for line in text(summary(watched(episode(STORY), NEVER), 140)).splitlines()]
    assert ["committed", "validation", "accuracy,", "%", "50.0", "45.0", "+5.0"] in lines
    assert ["test", "accuracy,", "%", "40.0", "42.0", "-2.0"] in lines
    assert ["return,", "points", "39.0", "30.0", "+9.0"] in lines
    assert ["parameters", "kept", "7", "0"] in lines
    assert list(plain_summary(watched(episode(STORY), NEVER))) == [
        "Ran for 3 of 20 epochs.",
        "committed validation accuracy, % | 50.0 | wait 45.0 | difference +5.0",
        "test accuracy, % | 40.0 | wait 42.0 | difference -2.0",
        "return, points | 39.0 | wait 30.0 | difference +9.0",
        "parameters kept | 7 | wait 0",
    ]


def test_plain_lines_are_ascii() -> None:
    assert all(plain_epoch(record).isascii() for record in [*STORY, panicked(BORN)])


def test_a_sparkline_spans_its_range_and_a_flat_one_is_no_error() -> None:
    assert sparkline([0.0, 0.5, 1.0], 0.0, 1.0) == "▁▅█"
    assert sparkline([0.3, 0.3], 0.3, 0.3) == "▁▁"
    assert sparkline([], 0.0, 1.0) == ""


def test_markup_in_names_is_only_text() -> None:
    odd = episode(STORY, controller="[bold]x[/bold]")
    assert "[bold]x[/bold]" in text(summary(watched(odd, NEVER), 140))


def test_what_is_unlike_the_training_is_named_after_the_result() -> None:
    found = [
        OutOfRange(node="layer", index=0, feature=name, value=6.0, lower=10.0, upper=24.0)
        for name in ("width", "inputs", "norm", "gradient_norm", "dead_share")
    ]
    report = watched(episode(STORY), NEVER)
    shown = report.model_copy(update={"out_of_range": found})
    lines = list(plain_summary(shown))[len(list(plain_summary(report))) :]
    assert lines == [
        "unlike the training: layer 0 width 6, in training 10 to 24",
        "unlike the training: layer 0 inputs 6, in training 10 to 24",
        "unlike the training: layer 0 norm 6, in training 10 to 24",
        "unlike the training: 2 more measurements; --json has them",
    ]
    assert all(line in text(summary(shown, 140), 200) for line in lines)
    assert list(plain_summary(report.model_copy(update={"out_of_range": []}))) == list(plain_summary(report))
    unknown = report.model_copy(update={"policy_digest": "a" * 64})
    assert "does not say what it learned from" in list(plain_summary(unknown))[-1]
