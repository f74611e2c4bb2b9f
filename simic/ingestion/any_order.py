"""The order of reports whose files may come in any order: each report waits until those before it were seen.

A program that flushes after each epoch writes an episode into many files, whose names say nothing about their order.
Curation sorts by step, so the order of arrival is no fault.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

from simic.ingestion.episode_order import EpisodeOrder, Link

__all__ = ["MOST_HELD", "AnyOrder", "Judged"]

MOST_HELD = 200_000
"""Reports that wait for earlier ones, about 500 bytes each; beyond it the longest waiting episode is given up."""

Place = TypeVar("Place")


class Judged(NamedTuple, Generic[Place]):
    """A report that was judged, and why it does not continue its episode."""

    place: Place
    link: Link
    fault: str | None


class AnyOrder(Generic[Place]):
    """Gives reports to an ``EpisodeOrder`` by step, whatever the order in which they come.

    After a fault the rest of an episode is not judged: it is incomplete anyway, and a fault is told once.
    """

    def __init__(self, order: EpisodeOrder, most_held: int) -> None:
        self._order, self._most = order, most_held
        self._held: OrderedDict[str, dict[int, tuple[Place, Link]]] = OrderedDict()
        """By episode and step."""
        self._count = 0
        self.forgotten = 0
        """Episodes given up for the bound."""

    def take(self, place: Place, link: Link) -> Iterator[Judged[Place]]:
        """Take a valid report and yield those that can be judged now."""
        run = link.run_id
        if self._order.is_unread(run):
            yield Judged(place, link, None)
            return
        expected = self._order.next_step(run)
        if expected is not None and link.step > expected and link.step not in self._held.get(run, ()):
            self._held.setdefault(run, {})[link.step] = place, link
            self._count += 1
            if self._count > self._most:
                self.forgotten += 1
                yield from self.lose(next(iter(self._held)))
            return
        yield self._judge(place, link)
        while (held := self._held.get(run)) and not self._order.is_unread(run):
            following = self._order.next_step(run)
            step = min(held) if following is None else following
            if step not in held:
                return
            self._count -= 1
            yield self._judge(*held.pop(step))
        yield from self._release(run)

    def lose(self, run: str) -> Iterator[Judged[Place]]:
        """Note that a report of an episode cannot be read, and yield what waited for it."""
        self._order.record_unread(run)
        yield from self._release(run)

    def end(self) -> Iterator[Judged[Place]]:
        """Yield the reports that waited for others which did not come."""
        for run in list(self._held):
            for _, (place, link) in sorted(self._held.pop(run).items()):
                fault = self._order.check(link)
                self._order.record(link, is_faulty=fault is not None)
                yield Judged(place, link, fault)
        self._count = 0

    def _judge(self, place: Place, link: Link) -> Judged[Place]:
        fault = self._order.check(link)
        if fault is None or self._order.next_step(link.run_id) is None:
            self._order.record(link, is_faulty=fault is not None)
        else:
            self._order.record_unread(link.run_id)
        return Judged(place, link, fault)

    def _release(self, run: str) -> Iterator[Judged[Place]]:
        for place, link in self._held.pop(run, {}).values():
            self._count -= 1
            yield Judged(place, link, None)
