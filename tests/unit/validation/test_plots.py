"""Pictures come out, whatever the trials held."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from support.builders.judged_candidates import estimate, family_trial, trials

from simic.runtime.telemetry import JsonLinesSink
from simic.validation.plots import (
    _running_mean,
    _unbroken,
    learning_curves,
    paired_differences,
)


def size_of(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def test_differences_are_drawn_with_and_without_a_champion(tmp_path: Path) -> None:
    for names in (("wait", "candidate"), ("wait", "random", "blind", "oracle", "champion", "candidate", "stranger")):
        report = trials(names)
        assert size_of(paired_differences(report, tmp_path / f"{len(names)}.png"))[0] > 800


def test_a_family_without_an_interval_is_left_out(tmp_path: Path) -> None:
    report = trials()
    rows = [
        row.model_copy(update={"by_family": {"cap": family_trial(estimate(1.0)), "select": family_trial(None)}})
        for row in report.controllers
    ]
    paired_differences(report.model_copy(update={"controllers": rows}), tmp_path / "some.png")


def test_equal_evidence_gives_equal_bytes(tmp_path: Path) -> None:
    first, second = (paired_differences(trials(), tmp_path / f"{name}.png") for name in "ab")
    assert first.read_bytes() == second.read_bytes()


def test_a_phase_that_logs_nothing_leaves_a_gap_and_means_look_back_only() -> None:
    """[3, 4] and [9]: no line in between; and means of 1, 2, .. 40 are those of ten on each side, if there are."""
    assert _unbroken([3, 4, 9]) == [slice(0, 2), slice(2, 3)]
    assert _unbroken([]) == [slice(0, 0)]
    means = _running_mean([float(value) for value in range(1, 41)])
    assert [means[0], means[15], means[-1]] == pytest.approx([sum(range(1, 12)) / 11, 16.0, sum(range(30, 41)) / 11])


def test_curves_with_holes_are_drawn(tmp_path: Path) -> None:
    curves = tmp_path / "curves.jsonl"
    with JsonLinesSink(curves) as sink:
        for step in range(30):
            sink.log(step, {"policy_loss": float("nan") if step == 7 else 1.0 / (step + 1)})
        sink.log(30, {f"series_{number}": 1.0 for number in range(5)})
    size_of(learning_curves(curves, tmp_path / "curves.png"))
    curves.write_text("")
    size_of(learning_curves(curves, tmp_path / "empty.png"))
