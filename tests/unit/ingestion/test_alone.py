"""A delivery that failed before is made durable by itself."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from support.builders.reports import BLUEPRINTS, episode, line
from support.homes.pipeline import PROVENANCE, FixedClock

from simic.bus.protocol import Delivery, Line
from simic.bus.spool.bus import SpoolBus
from simic.contracts.settings.run import IngestConfig
from simic.ingestion.ingest import ingest
from simic.runtime.home import Home


class Scripted(SpoolBus):
    """Delivers one report each, some of them to be taken alone, and notes what was acknowledged when."""

    def __init__(self, root: Path, alone: list[bool]) -> None:
        super().__init__(root)
        self.told: list[str] = []
        self._alone, self._reports = alone, episode(1)

    def claim(self, topic: str) -> Iterator[Delivery]:
        for number, is_alone in enumerate(self._alone):
            self.told.append(f"deliver {number}")
            yield Delivery(topic, str(number), partial(self._lines, number), is_alone)

    def _lines(self, number: int, limit: int) -> Iterator[Line]:
        return iter([Line(1, line(self._reports[number]), None)])

    def ack(self, delivery: Delivery) -> None:
        self.told.append(f"ack {delivery.source}")


def test_what_came_before_and_what_comes_after_are_commits_of_their_own(tmp_path: Path) -> None:
    bus = Scripted(tmp_path / "bus", [False, False, True, True, False, False])
    receipt = ingest(
        bus, Home(tmp_path), IngestConfig(), frozenset(BLUEPRINTS), provenance=PROVENANCE, clock=FixedClock()
    )
    assert receipt.landed == 6
    assert len(receipt.parts) == 4
    assert bus.told == [
        "deliver 0", "deliver 1", "deliver 2", "ack 0", "ack 1", "ack 2",
        "deliver 3", "ack 3", "deliver 4", "deliver 5", "ack 4", "ack 5",
    ]  # fmt: skip
