"""Reports of a Grower whose bus is away for a while."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import zstandard
from support.builders.small_loops import Net, grow, train, train_epoch
from torch.optim import Optimizer

import simic


class Bus:
    """A bus that is away while told so."""

    def __init__(self, bus: Any) -> None:
        self.put_into, self.is_away = bus.put, False

    def put(self, *arguments: Any) -> None:
        if self.is_away:
            raise simic.TransientError("bus away")
        self.put_into(*arguments)


def test_reports_that_a_full_writer_refuses_are_written_with_the_next_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("simic.api.reports.MOST_WAITING", 2)
    with simic.FieldReportWriter(spool=tmp_path) as writer:
        bus = writer._bus = Bus(writer._bus)
        grower, optimizer = grow(Net(), epochs=6, report_to=writer)
        train(grower, optimizer, 2)
        bus.is_away = True
        train_epoch(grower, optimizer)
        with pytest.raises(simic.TransientError, match="bus away"):
            grower.step()
        assert grower.growth is not None
        assert grower.growth.epoch == 3
        with pytest.raises(simic.TransientError, match="bus away"):
            grower.step()
        bus.is_away = False
        assert grower.step() == grower.growth
        assert grower.state.epoch == 3
        bus.is_away = True
        train_epoch(grower, optimizer)
        grower.step()
        train_epoch(grower, optimizer)
        with pytest.raises(simic.TransientError, match="bus away"):
            grower.step()
        bus.is_away = False
        train(grower, optimizer, 1)
    assert steps_in(tmp_path) == list(range(6))


def test_reports_to_something_of_a_wrong_type_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"report_to: expected .* found int"):
        grow(Net(), report_to=5)


def test_a_second_finalize_writes_what_the_first_could_not(tmp_path: Path) -> None:
    model = Net()
    grower, optimizer = grow(model, epochs=4, report_to=tmp_path)
    bus = grower._reports._writer._bus = Bus(grower._reports._writer._bus)
    train(grower, optimizer, 3)
    bus.is_away = True
    train_epoch(grower, optimizer)
    for call in (grower.step, grower.finalize):
        with pytest.raises(simic.TransientError, match="bus away"):
            call()
    assert steps_in(tmp_path) == list(range(3))
    bus.is_away = False
    assert grower.finalize() is model
    assert steps_in(tmp_path) == list(range(4))


def test_a_grower_that_goes_back_writes_on_what_the_bus_did_not_take(tmp_path: Path) -> None:
    grower, optimizer = grow(Net(), report_to=tmp_path)
    bus = grower._reports._writer._bus = Bus(grower._reports._writer._bus)
    train(grower, optimizer, 1)
    end_an_epoch_without(bus, grower, optimizer)
    grower.load_state_dict(grower.state_dict())
    bus.is_away = False
    grower.finalize()
    assert steps_in(tmp_path) == [0, 1]


def test_a_grower_that_goes_on_with_another_episode_writes_that_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("simic.api.reports.MOST_WAITING", 1)
    other, trains_other = grow(Net())
    train(other, trains_other, 1)
    with simic.FieldReportWriter(spool=tmp_path) as writer:
        bus = writer._bus = Bus(writer._bus)
        grower, optimizer = grow(Net(), report_to=writer)
        train(grower, optimizer, 1)
        end_an_epoch_without(bus, grower, optimizer)
        grower.load_state_dict(other.state_dict())
        bus.is_away = False
        train(grower, optimizer, 1)
    assert steps_in(tmp_path) == [0, 1, 1]


def end_an_epoch_without(bus: Bus, grower: simic.Grower, optimizer: Optimizer) -> None:
    """Train an epoch whose report the bus does not take."""
    bus.is_away = True
    train_epoch(grower, optimizer)
    with pytest.raises(simic.TransientError, match="bus away"):
        grower.step()


def steps_in(spool: Path) -> list[int]:
    """The steps of the reports on a spool, in their order within the episode."""
    lines = [line for file in spool.rglob("*.jsonl.zst") for line in zstandard.open(file, "rt").read().splitlines()]
    return sorted(json.loads(line)["step"] for line in lines)
