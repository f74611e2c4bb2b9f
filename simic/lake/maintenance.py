"""Maintenance of the lake under its lock: compaction, retention, deletion of retired files."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from simic.contracts.errors import IntegrityError
from simic.contracts.results.lake import Compaction, LakeStatus, Retention, Vacuum
from simic.contracts.settings.run import LakeConfig
from simic.lake.compaction import COMPACT_TMP, MergeLimits, merge, plan_merges
from simic.lake.lake import LAKE_LOCK, Lake, open_lake
from simic.lake.log import Part
from simic.lake.retention import drop, expire_tombstones, older_than, over_bytes, vacuum
from simic.runtime.clock import Clock
from simic.runtime.home import Home
from simic.runtime.locks import exclusive
from simic.runtime.progress import Progress

__all__ = ["LakeMaintenance"]

_LOG = logging.getLogger(__name__)
MIB = 1024 * 1024
_MOST_AHEAD = timedelta(days=3)
_MERGE_DIVISOR = 16
"""A merge ends once it has taken ``lake.max_bytes`` divided by this. For one byte too many the whole oldest part is
dropped."""


class LakeMaintenance:
    """Compaction, retention and vacuum of one home's lake."""

    def __init__(self, home: Home, config: LakeConfig, code_version: str, clock: Clock, progress: Progress) -> None:
        self._home, self._config, self._code_version = home, config, code_version
        self._clock, self._progress = clock, progress

    def status(self) -> LakeStatus:
        """Return counts and sizes from the ledger and the list of files; opens no part."""
        lake = open_lake(self._home)
        moments = [part.landed_at for part in lake.parts]
        return LakeStatus(
            place=lake.store.place,
            parts=len(lake.parts),
            rows=_rows(lake.parts),
            size_bytes=_size(lake.parts),
            small_parts=sum(len(run) for run in plan_merges(lake.parts, self._limits(least_parts=2))),
            oldest_landed_at=min(moments, default=None),
            newest_landed_at=max(moments, default=None),
            retired_files=sum(name in lake.state.retired for name in lake.store.names()) if lake.state.retired else 0,
            remembered_ids=sum(file.rows for file in lake.state.tombstones),
            damaged_rows=sum(damaged.rows for damaged in lake.state.damaged),
        )

    def compact(self) -> Compaction:
        """Merge all runs of adjacent small parts."""
        with self._writing("merging parts") as lake:
            return self._merge(lake, least_parts=2, most_merges=None)

    def retain(self, max_age_days: float | None = None, max_bytes: int | None = None) -> Retention:
        """Drop parts by age, then the oldest beyond the size; arguments that are None are as configured."""
        age = self._config.max_age_days if max_age_days is None else max_age_days
        size = self._config.max_bytes if max_bytes is None else max_bytes
        with self._writing("dropping parts") as lake:
            return self._drop(lake, age, size)

    def vacuum(self, grace_minutes: float | None = None) -> Vacuum:
        """Delete files of parts retired before the grace period, and expire old tombstones."""
        grace = self._config.grace_minutes if grace_minutes is None else grace_minutes
        with self._writing("deleting files") as lake:
            return self._vacuum(lake, grace)

    def run_due(self) -> None:
        """Run bounded maintenance before an ingest: retention, at most one compaction, vacuum.

        A damaged part aborts maintenance but not the ingest, which does its own integrity check. A claim that was lost
        raises IntegrityError before anything is deleted.
        """
        if not open_lake(self._home).parts and not self._home.ids.exists():
            return
        with self._writing("maintaining the lake") as lake:
            try:
                is_ahead = self._is_clock_ahead(lake)
                self._drop(lake, None if is_ahead else self._config.max_age_days, self._config.max_bytes)
                if self._config.compact_parts:
                    self._merge(open_lake(self._home), least_parts=self._config.compact_parts, most_merges=1)
            except IntegrityError as error:
                _LOG.warning("maintenance of the lake was aborted: %s", error)
            lake = open_lake(self._home)
            if lake.state.retired and not is_ahead:
                self._vacuum(lake, self._config.grace_minutes)

    def _is_clock_ahead(self, lake: Lake) -> bool:
        """Return whether the clock is so far past the newest ledger line that nothing is dropped by age.

        A lake without ingests for as long looks the same; the next ingest then drops what is due.
        """
        state, now = lake.state, self._clock()
        moments = [part.landed_at for part in lake.parts] + list(state.retired.values())
        moments += [file.dropped_at for file in state.tombstones] + [line.at for line in state.damaged]
        newest = max(moments, default=now)
        if now - newest <= _MOST_AHEAD:
            return False
        _LOG.warning(
            "nothing is dropped by age now: the clock says %s, the ledger's newest line %s; if the clock is right, "
            "`simic lake retain` and `simic lake vacuum` drop what is due",
            now.isoformat(timespec="seconds"), newest.isoformat(timespec="seconds"),
        )  # fmt: skip
        return True

    @contextmanager
    def _writing(self, what: str) -> Iterator[Lake]:
        with exclusive(self._home.locks / LAKE_LOCK, what):
            shutil.rmtree(self._home.tmp / COMPACT_TMP, ignore_errors=True)
            lake = open_lake(self._home)
            lake.claim()
            yield lake

    def _merge(self, lake: Lake, least_parts: int, most_merges: int | None) -> Compaction:
        runs = plan_merges(lake.parts, self._limits(least_parts))[:most_merges]
        before = lake
        if runs:
            with self._progress.task("merge", sum(len(run) for run in runs)) as advance:
                for run in runs:
                    lake = merge(lake, run, at=self._clock(), code_version=self._code_version)
                    advance(len(run))
        return Compaction(
            merges=len(runs),
            parts_before=len(before.parts),
            parts_after=len(lake.parts),
            rows=sum(_rows(run) for run in runs),
            size_bytes_before=_size(before.parts),
            size_bytes_after=_size(lake.parts),
        )

    def _limits(self, least_parts: int) -> MergeLimits:
        is_daily = self._config.max_age_days is not None
        small_bytes, target_bytes = self._config.small_mb * MIB, self._config.target_mb * MIB
        if self._config.max_bytes is not None:
            target_bytes = min(target_bytes, self._config.max_bytes // _MERGE_DIVISOR)
            small_bytes = min(small_bytes, target_bytes)
        return MergeLimits(small_bytes, target_bytes, least_parts, is_daily)

    def _drop(self, lake: Lake, max_age_days: float | None, max_bytes: int | None) -> Retention:
        before, dropped = lake, {"age": 0, "bytes": 0}
        now = self._clock()
        if max_age_days is not None and (old := older_than(lake.parts, now - timedelta(days=max_age_days))):
            lake = drop(lake, old, "age", at=now, code_version=self._code_version)
            dropped["age"] = len(old)
        if max_bytes is not None and (much := over_bytes(lake.parts, max_bytes)):
            lake = drop(lake, much, "bytes", at=now, code_version=self._code_version)
            dropped["bytes"] = len(much)
        return Retention(
            parts_by_age=dropped["age"],
            parts_by_bytes=dropped["bytes"],
            rows=_rows(before.parts) - _rows(lake.parts),
            size_bytes=_size(before.parts) - _size(lake.parts),
            parts_left=len(lake.parts),
            size_bytes_left=_size(lake.parts),
        )

    def _vacuum(self, lake: Lake, grace_minutes: float) -> Vacuum:
        now = self._clock()
        known = sum(file.rows for file in lake.state.tombstones)
        lake = expire_tombstones(
            lake, now - timedelta(days=self._config.remember_days), at=now, code_version=self._code_version
        )
        swept = vacuum(lake, now=now, grace=timedelta(minutes=grace_minutes))
        return Vacuum(
            files=len(swept.deleted),
            waiting=len(swept.waiting),
            forgotten_ids=known - sum(file.rows for file in lake.state.tombstones),
        )


def _rows(parts: Sequence[Part]) -> int:
    return sum(part.rows for part in parts)


def _size(parts: Sequence[Part]) -> int:
    return sum(part.size_bytes for part in parts)
