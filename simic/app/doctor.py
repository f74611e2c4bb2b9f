"""Looks at everything a home holds and says what is wrong; repairs what loses nothing, and asks again for what is lost.

Without ``repair`` nothing is changed. What another process may be in the midst of is not judged: orphans and unfinished
files count only while nobody holds the lake's lock.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from simic.app.checks import damaged, healthy, lost, repairable, repaired, shown
from simic.app.products import examine_catalogue, examine_promotions, examine_snapshots
from simic.app.transport import examine_redis
from simic.bus.opening import BusSpec
from simic.bus.protocol import FIELD_REPORTS
from simic.bus.spool import ABANDONED_S, SpoolBus, spill_lock
from simic.contracts.errors import IntegrityError, SimicError, TransientError
from simic.contracts.lake import Check, HealthReport
from simic.runtime.locks import exclusive

if TYPE_CHECKING:
    from simic.lake.lake import Lake
    from simic.runtime.clock import Clock
    from simic.runtime.progress import Progress
    from simic.runtime.settings import Home

__all__ = ["Doctor"]

_OWN_TMP = ("ingest", "compact")
"""Folders below tmp that only the holder of the lake's lock uses."""


class Doctor:
    """Checks of one home, in an order in which later ones may rely on earlier ones."""

    def __init__(
        self,
        home: Home,
        spool: SpoolBus,
        champion: Callable[[], int | None],
        *,
        code_version: str,
        clock: Clock,
        progress: Progress,
        bus: BusSpec | None = None,
    ) -> None:
        self._home, self._spool, self._champion = home, spool, champion
        self._code_version, self._clock, self._progress = code_version, clock, progress
        self._bus = bus or BusSpec(home.spool)
        self._is_deep = self._is_repair = False

    def examine(self, *, is_deep: bool = False, is_repair: bool = False) -> HealthReport:
        """Every check; ``is_deep`` reads every byte. Raises TransientError if a repair finds the lake at work."""
        self._is_deep, self._is_repair = is_deep, is_repair
        checked_at = self._clock()
        with self._quiet() as is_quiet:
            checks = [*self._ledgers(is_quiet), *self._lake(is_quiet), *self._leftovers(is_quiet)]
            checks += examine_snapshots(self._home, is_deep=is_deep, is_repair=is_repair)
            checks += examine_promotions(self._home, self._champion, is_deep=is_deep)
            checks.append(healthy("locks", "cannot go stale: the kernel releases them with their holder"))
            checks += examine_catalogue(self._home, checks, is_repair=is_repair)
        checks += examine_redis(self._bus)
        return HealthReport(checked_at=checked_at, is_deep=is_deep, is_repair=is_repair, checks=checks)

    @contextmanager
    def _quiet(self) -> Iterator[bool]:
        """Holds the lake's lock; false where somebody else does and nothing is to be repaired."""
        from simic.lake.lake import LAKE_LOCK

        with ExitStack() as stack:
            try:
                stack.enter_context(exclusive(self._home.locks / LAKE_LOCK, "examining the lake"))
                is_quiet = True
            except TransientError:
                if self._is_repair:
                    raise
                is_quiet = False
            yield is_quiet

    # -- ledgers ----------------------------------------------------------------------------------

    def _ledgers(self, is_quiet: bool) -> Iterator[Check]:
        from simic.lake.ledger import Ledger
        from simic.lake.operations import PARTS_LEDGER

        for path in sorted(self._home.ledger.glob("*.jsonl")):
            ledger, name = Ledger(path), f"ledger {path.name}"
            try:
                lines = len(ledger.read())
            except IntegrityError as error:
                yield damaged(name, str(error), "restore it from a backup; nothing here can know what it said")
                continue
            torn, is_parts = ledger.torn_bytes(), path.name == PARTS_LEDGER
            if not torn:
                yield healthy(name, f"{lines} lines")
            elif not (is_parts and is_quiet):  # its writer may be in the midst of a line, and cuts them anyway
                yield healthy(name, f"{lines} lines, and {torn} unfinished bytes that the next line cuts off")
            elif self._is_repair:
                ledger.cut_torn_tail()
                yield repaired(name, f"{lines} lines", f"cut {torn} bytes that a killed run left unfinished")
            else:
                yield repairable(name, f"{lines} lines and {torn} unfinished bytes", "cut them, as the next line would")

    # -- the lake ---------------------------------------------------------------------------------

    def _lake(self, is_quiet: bool) -> Iterator[Check]:
        from simic.lake.lake import open_lake

        try:
            lake = open_lake(self._home)
        except IntegrityError as error:
            yield damaged("parts", str(error), "restore the ledger from a backup; parts are judged after that")
            return
        try:
            yield self._contracts(lake)
            yield from self._parts(lake)
            yield self._ids(open_lake(self._home))
            if is_quiet:
                yield self._orphans(open_lake(self._home))
        except TransientError as error:
            yield damaged("store", str(error), "nothing was judged; run this again when the store answers")

    def _contracts(self, lake: Lake) -> Check:
        from simic.lake.evolution import older_schemas

        try:
            older = older_schemas(lake.store, lake.parts)
        except TransientError:
            raise
        except SimicError as error:
            return damaged("contracts", str(error), "see the message; --repair leaves sound parts alone")
        found = f"{len(older)} earlier contracts, readable" if older else "one contract"
        return healthy("contracts", found)

    def _parts(self, lake: Lake) -> Iterator[Check]:
        from simic.lake.damage import broken_parts, deliveries, take_out

        with self._progress.task("doctor", len(lake.parts)) as advance:
            broken = broken_parts(lake, is_deep=self._is_deep, on_checked=advance)
        judged = "size and SHA-256" if self._is_deep else "size; --deep takes digests"
        if not broken:
            yield healthy("parts", f"{len(lake.parts)} parts as committed ({judged})")
        gone = sum(lake.store.size_bytes(one.part.part) is None for one in broken)
        if gone > 1 and 2 * gone > len(lake.parts):
            found = f"{gone} of {len(lake.parts)} parts are not in {lake.store.place}"
            remedy = "is it unmounted, or elsewhere? Bring it back or restore it; --repair takes out none of them"
            yield damaged("parts", found, remedy)
            return
        for one in broken:
            name, rows = f"part {one.part.part}", f"{one.found}; {one.part.rows} rows"
            if not self._is_repair:
                told = shown(deliveries(lake, one.part))
                yield damaged(name, f"{rows} from {told}", "take it out, and put those deliveries back if still there")
                continue
            lake, line, lost_rows = take_out(
                lake, one, lambda source: self._spool.requeue(FIELD_REPORTS, source),
                at=self._clock(), code_version=self._code_version,
            )  # fmt: skip
            done = f"taken out; {len(line.requeued)} deliveries put back, `simic ingest` lands them"
            if lost_rows:
                gone_rows = f"no longer at hand: {shown(line.missing)}, so that up to {lost_rows} rows are lost"
                yield lost(name, rows, f"{done}; {gone_rows}")
            else:
                yield repaired(name, rows, done)

    def _ids(self, lake: Lake) -> Check:
        from simic.lake.damage import broken_ids, forget_broken

        broken = broken_ids(lake, is_deep=self._is_deep)
        rows = sum(remembered.rows for remembered in broken)
        if not broken:
            return healthy("dropped ids", f"{sum(known.rows for known in lake.state.remembered)} are known")
        found = f"{len(broken)} files with {rows} ids are missing or changed: {shown([r.file for r in broken])}"
        if not self._is_repair:
            return damaged("dropped ids", found, "forget them: told again, these reports would come back as new")
        forget_broken(lake, broken, at=self._clock(), code_version=self._code_version)
        return lost("dropped ids", found, "forgotten")

    def _orphans(self, lake: Lake) -> Check:
        from simic.lake.parts import find_orphans, set_orphans_aside

        found = find_orphans(lake.store, lake.state)
        if not found:
            waiting = len(lake.state.retired.keys() & set(lake.store.names())) if lake.state.retired else 0
            return healthy("orphans", f"none; {waiting} files of merged or dropped parts wait for their readers")
        told = f"{len(found)} files that no ledger line names: {shown(found)}"
        if not self._is_repair:
            return repairable("orphans", told, "set them aside, as an ingest does: their reports come again")
        try:
            lake.check_owner()
            set_orphans_aside(lake.store, lake.state)
        except IntegrityError as error:
            return damaged("orphans", str(error), "see the message; they stay where they are")
        return repaired("orphans", told, "set aside: their deliveries were never acknowledged")

    # -- what killed processes leave --------------------------------------------------------------

    def _leftovers(self, is_quiet: bool) -> Iterator[Check]:
        if not is_quiet:
            yield healthy("unfinished files", "not judged: an ingest or `simic lake` is at work")
            return
        left = [self._home.tmp / name for name in _OWN_TMP if (self._home.tmp / name).exists()]
        left = [path for path in left if any(path.iterdir())]
        oldest = time.time() - ABANDONED_S
        others = [path for path in _entries(self._home.tmp) if path.name not in _OWN_TMP and path.suffix != ".json"]
        left += [path for path in others if _changed_at(path) < oldest]
        yield self._clear("unfinished files", left)
        yield self._claimed()

    def _claimed(self) -> Check:
        """Under the lock of those who forward to Redis: they claim what they forward, and not the lake's lock."""
        with ExitStack() as stack:
            try:
                lock = spill_lock(self._spool.locks, FIELD_REPORTS)
                stack.enter_context(exclusive(lock, "examining the spool"))
            except TransientError:
                return healthy("spool", "not judged: a producer is forwarding to Redis")
            claimed = self._spool.claimed(FIELD_REPORTS)
            if not claimed:
                return healthy("spool", f"{self._spool.pending(FIELD_REPORTS)} deliveries wait")
            told = f"{len(claimed)} claimed by a process that ended: {shown(claimed)}"
            if not self._is_repair:
                return repairable("spool", told, "put them back; whoever claims next would take them first anyway")
            for name in claimed:
                self._spool.requeue(FIELD_REPORTS, name)
            return repaired("spool", told, "put back")

    def _clear(self, name: str, left: Sequence[Path]) -> Check:
        if not left:
            return healthy(name, "none")
        told = shown([str(path.relative_to(self._home.root)) for path in left])
        if not self._is_repair:
            return repairable(name, told, "delete them: nothing in them was committed")
        for path in left:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        return repaired(name, told, "deleted")


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")  # its owner has just ended
