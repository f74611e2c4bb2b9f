"""A receiver that is slow, fails or hangs costs the work nothing, and what it lost is counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from simic.runtime.side_thread import SideThread, Tally


def test_all_records_arrive_in_order_and_in_batches() -> None:
    batches: list[list[int]] = []
    ended: list[str] = []
    thread = SideThread[int]("test", lambda batch: batches.append(list(batch)), every_s=60.0)
    for number in range(1000):
        thread.put(number)
    assert thread.close(10.0, lambda: ended.append(f"after {len(batches)}")) == Tally(0, 0, None)
    assert [number for batch in batches for number in batch] == list(range(1000))
    assert ended == ["after 1"]


def test_a_batch_is_written_while_the_work_goes_on() -> None:
    arrived = threading.Event()
    thread = SideThread[int]("test", lambda _batch: arrived.set(), every_s=0.01)
    thread.put(1)
    assert arrived.wait(10.0)
    thread.close(10.0)


def test_a_failure_is_counted_and_the_next_batch_is_tried() -> None:
    written: list[int] = []

    def fails_once(batch: Sequence[int]) -> None:
        if not written:
            written.append(-1)
            raise ConnectionError("no receiver")
        written.extend(batch)

    thread = SideThread[int]("test", fails_once, every_s=0.01)
    thread.put(1)
    while not written:
        time.sleep(0.001)
    thread.put(2)
    assert thread.close(10.0) == Tally(1, 0, "ConnectionError: no receiver")
    assert written == [-1, 2]


def test_an_end_that_fails_is_counted() -> None:
    def fails() -> None:
        raise ValueError("still open")

    assert SideThread[int]("test", lambda _batch: None, every_s=60.0).close(10.0, fails) == Tally(
        1, 0, "ValueError: still open"
    )


def test_more_than_fits_is_dropped_and_a_hanging_receiver_is_given_up() -> None:
    begun, released = threading.Event(), threading.Event()

    def hangs(_batch: Sequence[int]) -> None:
        begun.set()
        released.wait(60.0)

    thread = SideThread[int]("test", hangs, every_s=0.01, capacity=3)
    thread.put(0)
    assert begun.wait(10.0)
    for number in range(5):
        thread.put(number)
    tally = thread.close(0.05)
    released.set()
    assert tally == Tally(1, 2 + 3, "it did not end within 0.05 s"), "the batch that hangs is a failure"
