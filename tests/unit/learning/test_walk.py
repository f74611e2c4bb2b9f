"""Few files take a snapshot, or the dataset read from it, as an argument during a training run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from draw_architecture import PAGE, ROOT
from support.builders.learning import bandit_episodes
from support.builders.snapshots import write_snapshot
from support.builders.trainings import sealed

from simic.contracts.results.receipts import SnapshotManifest
from simic.contracts.settings.network import NetworkConfig
from simic.contracts.settings.training import TrainConfig
from simic.replay.dataset import GraphDataset

CONFIG = TrainConfig(
    network=NetworkConfig(hidden=8, layers=1),
    batch_sequences=16,
    cloning_passes=1,
    value_passes=1,
    vtrace_passes=1,
    min_experiences=10,
    min_commit_rate=0.0,
)


@contextmanager
def files_that_take(kinds: tuple[type[object], ...], found: list[str]) -> Iterator[None]:
    """Append each file of simic to ``found`` when a function of it is first called with one of ``kinds``."""
    before: Callable[..., Any] | None = sys.getprofile()

    def on_call(frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        path = frame.f_code.co_filename
        if path.startswith(str(ROOT / "simic")) and any(isinstance(value, kinds) for value in arguments(frame)):
            name = Path(path).relative_to(ROOT).as_posix()
            if name not in found:
                found.append(name)

    sys.setprofile(on_call)
    try:
        yield
    finally:
        sys.setprofile(before)


def arguments(frame: FrameType) -> list[object]:
    """Return the values of the parameters of a frame that was just entered."""
    code: CodeType = frame.f_code
    return [frame.f_locals[name] for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            if name in frame.f_locals]  # fmt: skip


def test_a_snapshot_enters_at_most_twelve_files_and_the_page_lists_them(tmp_path: Path) -> None:
    snapshot = write_snapshot(tmp_path / "snapshot", bandit_episodes(range(40)), split="train")
    found: list[str] = []
    with files_that_take((SnapshotManifest, GraphDataset), found):
        sealed(tmp_path, snapshot, CONFIG)
    assert found[0] == "simic/learning/train.py"
    assert len(found) <= 12
    _, _, section = PAGE.read_text("utf-8").partition("## Files that a snapshot passes through during training")
    listed = [line.split("`")[1] for line in section.splitlines() if line.startswith("1. `")]
    assert listed == found
