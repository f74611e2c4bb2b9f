"""A timeline comes out readable, whatever the episodes held."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from support.builders.episodes import EMPTY, WAIT, advance, episode, epoch, germinate, panicked, slot

from simic.contracts.actions import Action, Op
from simic.contracts.episode import EpisodeRecord, SlotRecord
from simic.contracts.lifecycle import SeedStage
from simic.validation import timeline
from simic.validation.timeline import _short_names, action_timeline

PRUNE = Action(op=Op.PRUNE, slot=0)


def size_of(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def story(stages: Sequence[SlotRecord], actions: Sequence[Action], horizon: int = 20) -> EpisodeRecord:
    """One slot lives through ``stages``, the others stay empty."""
    epochs = [
        epoch(number, 0.2 + 0.01 * number, action, (found, EMPTY, EMPTY))
        for number, (found, action) in enumerate(zip(stages, actions, strict=True))
    ]
    return episode(epochs, horizon=horizon)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Every figure as it was when it was saved."""
    figures: list[Figure] = []
    keep = timeline.save
    monkeypatch.setattr(timeline, "save", lambda figure, path: (figures.append(figure), keep(figure, path))[1])
    return figures


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


QUIET = story([EMPTY, EMPTY], [WAIT, WAIT], horizon=2)
TWICE = story(
    [slot(SeedStage.TRAINING), slot(SeedStage.BLENDING, alpha=0.4), slot(SeedStage.PRUNED), EMPTY,
     slot(SeedStage.TRAINING), slot(SeedStage.FOSSILIZED, alpha=1.0)],
    [germinate(0), advance(0), PRUNE, WAIT, germinate(0), WAIT],
)  # fmt: skip


def test_it_grows_with_the_episodes_and_leaves_no_figure_behind(tmp_path: Path) -> None:
    one = size_of(action_timeline([TWICE], tmp_path / "deep" / "one.png", "one"))
    two = size_of(action_timeline([TWICE, QUIET], tmp_path / "two.png", "two"))
    assert one[0] == two[0] > 1000
    assert two[1] > 1.5 * one[1]
    assert plt.get_fignums() == []


def test_an_episode_without_any_growth_can_be_drawn(tmp_path: Path) -> None:
    size_of(action_timeline([QUIET], tmp_path / "quiet.png", "nothing happened"))


def test_equal_episodes_give_equal_bytes(tmp_path: Path) -> None:
    first, second = (action_timeline([TWICE], tmp_path / f"{name}.png", "same") for name in "ab")
    assert first.read_bytes() == second.read_bytes()


def test_every_seed_is_named_the_second_of_its_kind_in_a_slot_too(tmp_path: Path, drawn: list[Figure]) -> None:
    action_timeline([TWICE], tmp_path / "twice.png", "title of the picture")
    found = words(drawn[0])
    assert found.count("gate") == 2
    assert "title of the picture" in found
    assert {"host 15, family cap: return 39.0 points", "slot 0", "slot 1", "slot 2", "50 %"} <= set(found)
    assert {"training", "fossilised", "germinate", "advance", "prune"} <= set(found)
    assert "governor ended it" not in found


def test_names_that_do_not_fit_become_letters_with_a_legend(tmp_path: Path, drawn: list[Figure]) -> None:
    """Seeds that live for two of a hundred epochs."""
    names = ["dense", "dropout", "bottleneck"]
    stages = [slot(SeedStage.TRAINING, name) for name in names for _ in range(2)]
    actions = [action for name in names for action in (germinate(0, name), WAIT)]
    action_timeline([story(stages, actions, horizon=100)], tmp_path / "short.png", "short lives")
    found = words(drawn[0])
    assert {"de: dense", "dr: dropout", "de", "dr"} <= set(found)
    assert "bottleneck" in found, "nothing follows it"


def test_no_writing_lies_on_other_writing_or_beyond_the_edge(tmp_path: Path, drawn: list[Figure]) -> None:
    """Four seeds in each of three slots, the last ones born in the last epoch."""
    horizon = 20
    born = [0, 6, 12, 19]
    epochs = []
    for number in range(horizon):
        here = max(start for start in born if start <= number)
        action = germinate(0, "bottleneck") if number == here else WAIT
        epochs.append(epoch(number, 0.5, action, [slot(SeedStage.TRAINING, "bottleneck")] * 3))
    action_timeline([episode(epochs), episode(epochs)], tmp_path / "full.png", "a full house")
    figure = drawn[0]
    figure.draw_without_rendering()
    written = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    boxes = [(text.get_text(), text.get_window_extent()) for text in written]
    shown = [(name, box) for name, box in boxes if box.width and figure.bbox.contains(box.x0 + 1, box.y0 + 1)]
    assert sum(name == "bottleneck" for name, _ in shown) == 2 * (3 + 1 + 1)
    for index, (name, box) in enumerate(shown):
        assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0 and box.y1 <= figure.bbox.y1, name
        for other_name, other in shown[index + 1 :]:
            assert not box.overlaps(other), (name, other_name)


def test_a_panic_is_marked(tmp_path: Path, drawn: list[Figure]) -> None:
    stopped = episode([epoch(0, 0.2, germinate(1)), panicked(epoch(1, 0.2))])
    action_timeline([stopped], tmp_path / "panic.png", "stopped")
    assert "governor ended it" in words(drawn[0])


def test_short_names_tell_names_apart() -> None:
    assert _short_names(["dense", "dropout", "gate"]) == {"dense": "de", "dropout": "dr", "gate": "g"}
    assert _short_names(["conv", "conv3", "conv"]) == {"conv": "conv", "conv3": "conv3"}
