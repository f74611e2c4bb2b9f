"""Any sequence of landings, repetitions, merges, drops and sweeps against a naive twin that keeps plain lists."""

from __future__ import annotations

import shutil
import tempfile
from datetime import timedelta
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.builders.reports import episode
from support.homes.lakes import maintenance, stored
from support.homes.pipeline import NOW, drop, ingest_all

from simic.lake.lake import open_lake
from simic.runtime.home import Home

EPISODES = [episode(key, horizon=4, script={}) for key in range(12)]


class LakeTwin(RuleBasedStateMachine):
    """``live`` holds landed report ids in order, with the day they landed; ``known`` everything ever landed."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Home(Path(tempfile.mkdtemp(prefix="simic-twin-")))
        self.now, self.files = NOW, 0
        self.live: list[tuple[str, int]] = []
        self.known: set[str] = set()

    def clock(self):
        return self.now

    def teardown(self) -> None:
        shutil.rmtree(self.home.root)

    @initialize(batch=st.integers(2, 5))
    def begin_with_several_parts_of_two_days(self, batch: int) -> None:
        self.deliver(list(range(3)), batch, 0)
        self.deliver(list(range(3, 6)), batch, 1)

    @rule(
        keys=st.lists(st.integers(0, len(EPISODES) - 1), min_size=1, max_size=3),
        batch=st.integers(2, 9),
        days=st.integers(0, 1),
    )
    def deliver(self, keys: list[int], batch: int, days: int) -> None:
        self.now += timedelta(days=days)
        reports = [report for key in keys for report in EPISODES[key]]
        self.files += 1
        drop(self.home, f"d{self.files:03d}", reports)
        new = [report.report_id for report in reports if report.report_id not in self.known]
        new = list(dict.fromkeys(new))
        receipt = ingest_all(self.home, clock=self.clock, batch_reports=batch)
        assert (receipt.landed, receipt.duplicate) == (len(new), len(reports) - len(new))
        self.live += [(report_id, self.now.day) for report_id in new]
        self.known |= set(new)

    @rule(is_daily=st.booleans())
    def merge(self, is_daily: bool) -> None:
        """Within days, as where an ingest drops by age, or within the month."""
        maintenance(self.home, self.clock, max_age_days=36_500.0 if is_daily else None).compact()

    @rule(days=st.integers(1, 2))
    def drop_by_age(self, days: int) -> None:
        """Whole parts go, from the oldest on, as long as they hold old rows only."""
        newest_old_day = (self.now - timedelta(days=days)).day
        done = maintenance(self.home, self.clock).retain(max_age_days=days - 0.5)
        assert all(day <= newest_old_day for _, day in self.live[: done.rows])
        self.live = self.live[done.rows :]
        for part in open_lake(self.home).parts[:1]:
            assert any(day > newest_old_day for _, day in self.live[: part.rows])

    @rule(share=st.sampled_from([0.0, 0.3, 0.6, 0.9]))
    def drop_by_bytes(self, share: float) -> None:
        parts = open_lake(self.home).parts
        done = maintenance(self.home, self.clock).retain(max_bytes=int(share * sum(part.size_bytes for part in parts)))
        assert done.rows == sum(part.rows for part in parts[: done.parts_by_bytes])
        self.live = self.live[done.rows :]

    @rule(grace=st.sampled_from([0, 60]))
    def sweep(self, grace: int) -> None:
        maintenance(self.home, self.clock).vacuum(grace_minutes=grace)

    @invariant()
    def exactly_these_rows_in_this_order(self) -> None:
        import pyarrow.parquet as pq

        lake = open_lake(self.home)
        found: list[str] = []
        for part in lake.parts:
            with lake.store.open(part.part) as file:
                found += pq.read_table(file, columns=["report_id"])["report_id"].to_pylist()
        assert found == [report_id for report_id, _ in self.live]
        assert {part.part for part in lake.parts} <= stored(self.home)


TestLakeTwin = LakeTwin.TestCase
TestLakeTwin.settings = settings(max_examples=12, stateful_step_count=10, deadline=None)
