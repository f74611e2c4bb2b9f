"""An episode that contradicts itself is refused."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from support.builders.episodes import episode, epoch, panicked, watched

from simic.contracts.episode import WatchReport


def test_epochs_are_counted_from_0_without_a_gap_and_not_beyond_the_horizon() -> None:
    with pytest.raises(ValidationError, match="without a gap"):
        episode([epoch(0, 0.2), epoch(2, 0.3)])
    with pytest.raises(ValidationError, match="more than the horizon 1"):
        episode([epoch(0, 0.2), epoch(1, 0.3)], horizon=1)
    with pytest.raises(ValidationError):
        episode([])


def test_nothing_comes_after_the_governor() -> None:
    episode([epoch(0, 0.2), panicked(epoch(1, 0.2))])
    with pytest.raises(ValidationError, match="governor"):
        episode([panicked(epoch(0, 0.2)), epoch(1, 0.3)])


def test_accuracy_begins_at_birth_and_ends_with_the_running_network() -> None:
    assert episode([epoch(0, 0.2), epoch(1, 0.3)]).accuracy == [0.1, 0.2, 0.3]


def test_an_episode_has_the_slots_of_its_host() -> None:
    first = epoch(0, 0.2)
    assert episode([first]).slots == len(first.slots) > 0


def test_a_report_survives_json() -> None:
    report = watched(episode([epoch(0, 0.2)]), episode([epoch(0, 0.1)], controller="wait", return_points=30.0))
    assert WatchReport.model_validate_json(report.model_dump_json()) == report
    assert report.over_wait == 9.0
