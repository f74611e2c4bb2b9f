"""The doctor: checks everything a home holds, and repairs what can be repaired without loss.

Without ``repair`` nothing is changed. Files that another process may be writing are not judged: orphans and unfinished
files count only while nobody holds the lock of the lake.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from simic.app.bus_admin import examine_bus
from simic.app.checks.health import counted, damaged, healthy, repairable, repaired, summarise, unrecoverable
from simic.app.checks.key_checks import examine_keys
from simic.app.checks.policy_checks import examine_policies
from simic.app.container import Container
from simic.app.home_location import examine_place
from simic.bus.factory import BusSpec
from simic.bus.plugins.spool import open_spool
from simic.bus.spool.bus import ABANDONED_S, SpoolBus, spill_lock
from simic.catalogue.query import build_catalogue
from simic.contracts.errors import IntegrityError, SimicError, TransientError
from simic.contracts.names import FIELD_REPORTS
from simic.contracts.results.lake import Check, Health, HealthReport
from simic.lake.evolution import older_schemas
from simic.lake.lake import LAKE_LOCK, Lake, open_lake
from simic.lake.parts import find_orphans, move_orphans_to_damaged
from simic.lake.repair import (
    RemovalResult,
    deliveries,
    expire_damaged_tombstones,
    find_damaged_parts,
    find_damaged_tombstones,
    remove_part,
)
from simic.ledgers import PARTS_LEDGER
from simic.ledgers.ledger import Ledger
from simic.registry.registry import Registry
from simic.runtime.clock import Clock
from simic.runtime.files import move_to_damaged, unfinished_files
from simic.runtime.home import Home
from simic.runtime.locks import exclusive
from simic.runtime.progress import Progress
from simic.snapshots.index import folders
from simic.snapshots.manifest import Verify, read_manifest

__all__ = ["Doctor", "open_doctor"]

_OWN_TMP = ("ingest", "compact")
"""Folders below tmp that only the holder of the lake's lock uses."""
_ASIDE_ADVICE = (
    '`simic sql "SELECT source, message FROM quarantine"` or `simic bus dead-letters` says why; repair each file and '
    "move it to the folder incoming, or delete it"
)


class Doctor:
    """Checks of one home, in an order in which later ones rely on earlier ones."""

    def __init__(
        self,
        home: Home,
        spool: SpoolBus,
        registry_of: Callable[[str], Registry],
        *,
        code_version: str,
        clock: Clock,
        progress: Progress,
        bus: BusSpec | None = None,
    ) -> None:
        self._home, self._spool, self._registry_of = home, spool, registry_of
        self._code_version, self._clock, self._progress = code_version, clock, progress
        self._bus = bus or BusSpec(home.spool)
        self._is_deep = self._is_repair = False

    def examine(self, *, is_deep: bool = False, is_repair: bool = False) -> HealthReport:
        """Run every check and return the report.

        Args:
            is_deep: Whether to read every byte.
            is_repair: Whether to repair what was found.

        Raises:
            TransientError: if a repair finds the lake's lock held by another process.
        """
        self._is_deep, self._is_repair = is_deep, is_repair
        checked_at = self._clock()
        with self._quiet() as is_quiet:
            checks = _section("place", examine_place(self._home, checked_at, is_repair=is_repair))
            is_placed = all(check.health in (Health.HEALTHY, Health.REPAIRED) for check in checks)
            checks += _section("ledgers", self._ledgers(is_quiet))
            checks += _section("lake", self._lake(is_quiet))
            checks += _section("unfinished files", self._leftovers(is_quiet))
            checks += _section("temporary files", self._temporary_files())
            checks += _section("files set aside", self._set_aside())
            checks += _section("snapshots", examine_snapshots(self._home, is_deep=is_deep, is_repair=is_repair))
            # Opening the registry rewrites what names an earlier place, which only a repair may do.
            if is_placed:
                policies = examine_policies(self._home, self._registry_of, is_deep=is_deep, is_repair=is_repair)
                checks += _section("policies", policies)
            keys = examine_keys(self._home, self._clock, is_deep=is_deep, is_repair=is_repair)
            checks += _section("keys", keys)
            checks.append(healthy("locks", "nothing to check: the kernel releases them when their processes end"))
            checks += _section("catalogue", examine_catalogue(self._home, checks, is_repair=is_repair))
        checks += _section("bus", examine_bus(self._bus))
        return HealthReport(checked_at=checked_at, is_deep=is_deep, is_repair=is_repair, checks=checks)

    @contextmanager
    def _quiet(self) -> Iterator[bool]:
        """Hold the lock of the lake; yield False if another process holds it and nothing is to be repaired."""
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
        for path in sorted(self._home.ledger.glob("*.jsonl")):
            ledger, name = Ledger(path), f"ledger {path.name}"
            try:
                lines = len(ledger.read())
            except IntegrityError as error:
                yield damaged(
                    name, str(error), "restore it from a backup; its content cannot be derived from anything else"
                )
                continue
            torn, is_parts = ledger.torn_bytes(), path.name == PARTS_LEDGER
            if not torn:
                yield healthy(name, counted(lines, "line"))
            elif not (is_parts and is_quiet):  # another process may be writing a line, and its next line cuts the rest
                yield healthy(
                    name, f"{counted(lines, 'line')}, and {torn} unfinished bytes that the next line cuts off"
                )
            elif self._is_repair:
                ledger.cut_torn_tail()
                yield repaired(name, counted(lines, "line"), f"cut {torn} bytes that a killed run left unfinished")
            else:
                yield repairable(
                    name, f"{counted(lines, 'line')} and {torn} unfinished bytes", "cut them, as the next line would"
                )

    # -- the lake ---------------------------------------------------------------------------------

    def _lake(self, is_quiet: bool) -> Iterator[Check]:
        try:
            lake = open_lake(self._home)
        except IntegrityError as error:
            yield damaged("parts", str(error), "restore the ledger from a backup; parts are judged after that")
            return
        try:
            try:
                lake.claim() if self._is_repair else lake.check_owner()
            except IntegrityError as error:
                yield damaged("store", str(error), "see the message; parts are judged after that")
                return
            yield self._contracts(lake)
            yield from self._parts(lake)
            yield self._ids(open_lake(self._home))
            if is_quiet:
                yield self._orphans(open_lake(self._home))
        except TransientError as error:
            yield damaged("store", str(error), "not all was checked; run this again when the store answers")

    def _contracts(self, lake: Lake) -> Check:
        try:
            older = older_schemas(lake.store, lake.parts)
        except TransientError:
            raise
        except SimicError as error:
            return damaged("contracts", str(error), "see the message; --repair leaves intact parts alone")
        summary = (
            f"{len(older)} earlier contracts, readable" if older else "all reports use one version of the contract"
        )
        return healthy("contracts", summary)

    def _parts(self, lake: Lake) -> Iterator[Check]:
        with self._progress.task("doctor", len(lake.parts)) as advance:
            broken = find_damaged_parts(lake, is_deep=self._is_deep, on_checked=advance)
        judged = "size and SHA-256" if self._is_deep else "size; --deep also checks SHA-256"
        if not broken:
            yield healthy("parts", f"{len(lake.parts)} parts as committed ({judged})")
        gone = sum(lake.store.size_bytes(damaged_part.part.part) is None for damaged_part in broken)
        if gone > 1 and 2 * gone > len(lake.parts):
            problem = f"{gone} of {len(lake.parts)} parts are not in {lake.store.place}"
            remedy = "check whether it is unmounted or moved, then bring it back or restore it; --repair removes none"
            yield damaged("parts", problem, remedy)
            return
        removals: list[RemovalResult] = []
        for damaged_part in broken:
            name, rows = f"part {damaged_part.part.part}", f"{damaged_part.found}; {damaged_part.part.rows} rows"
            if not self._is_repair:
                summary = summarise(deliveries(lake, damaged_part.part))
                yield damaged(
                    name,
                    f"{rows} from {summary}",
                    "remove it, and return those deliveries to the spool if they still exist",
                )
                continue
            requeue = partial(self._spool.requeue, FIELD_REPORTS, limit_bytes=self._bus.ingest.max_report_bytes)
            try:
                removal = remove_part(lake, damaged_part, requeue, at=self._clock(), code_version=self._code_version)
            except TransientError:  # the next repair finds no trace of the parts removed so far
                yield from self._requeued(removals)
                raise
            removals.append(removal)
            lake, missing, lost_rows = removal.lake, removal.line.missing, removal.lost_rows
            done = f"removed; {len(removal.line.requeued)} deliveries returned to the spool"
            if lost_rows:
                gone_rows = f"{summarise(missing)} no longer exist as landed, so up to {lost_rows} rows are lost"
                yield unrecoverable(name, rows, f"{done}; {gone_rows}")
            else:
                yield repaired(name, rows, done)
        yield from self._requeued(removals)

    def _requeued(self, removals: Sequence[RemovalResult]) -> Iterator[Check]:
        """Say which command lands all requeued deliveries; a limit lowered since would refuse their longer lines."""
        requeued = {source for removal in removals for source in removal.line.requeued}
        if not requeued:
            return
        present, longest = self._bus.ingest.max_report_bytes, max(removal.limit_bytes for removal in removals)
        option, why, unless = "", "", ""
        if longest > present:
            option = f" -o ingest.max_report_bytes={longest}"
            why = f": with the present {present}, lines that landed may be refused as too long"
        if not all(removal.is_limit_known for removal in removals):
            unless = ", unless ingest.max_report_bytes was lowered since they landed"
        remedy = f"`simic ingest{option}` lands them{unless}{why}"
        yield repaired("deliveries", f"{len(requeued)} returned to the spool", remedy)

    def _ids(self, lake: Lake) -> Check:
        broken = find_damaged_tombstones(lake, is_deep=self._is_deep)
        rows = sum(remembered.rows for remembered in broken)
        if not broken:
            return healthy(
                "dropped ids",
                f"{sum(known.rows for known in lake.state.tombstones)} ids of dropped reports are remembered",
            )
        summary = f"{len(broken)} files with {rows} ids are missing or changed: {summarise([r.file for r in broken])}"
        if not self._is_repair:
            return damaged("dropped ids", summary, "drop them; the same reports would then land again as new")
        expire_damaged_tombstones(lake, broken, at=self._clock(), code_version=self._code_version)
        return unrecoverable("dropped ids", summary, "dropped")

    def _orphans(self, lake: Lake) -> Check:
        orphans = find_orphans(lake.store, lake.state)
        if not orphans:
            waiting = len(lake.state.retired.keys() & set(lake.store.names())) if lake.state.retired else 0
            return healthy(
                "orphans", f"none; {waiting} files of merged or dropped parts are kept for queries in progress"
            )
        summary = f"{len(orphans)} files that no line of the ledger names: {summarise(orphans)}"
        if not self._is_repair:
            return repairable(
                "orphans", summary, "move them away, as an ingest does; their reports are delivered again"
            )
        try:
            lake.check_held()
            move_orphans_to_damaged(lake.store, lake.state)
        except IntegrityError as error:
            return damaged("orphans", str(error), "see the message; they were not moved")
        return repaired("orphans", summary, "moved away; their deliveries were never acknowledged")

    # -- what killed processes leave --------------------------------------------------------------

    def _leftovers(self, is_quiet: bool) -> Iterator[Check]:
        if not is_quiet:
            yield healthy("unfinished files", "not examined: an ingest or `simic lake` is running")
            return
        left = [self._home.tmp / name for name in _OWN_TMP if (self._home.tmp / name).exists()]
        left = [path for path in left if any(path.iterdir())]
        oldest = time.time() - ABANDONED_S
        others = [path for path in _entries(self._home.tmp) if path.name not in _OWN_TMP and path.suffix != ".json"]
        others += _entries(self._home.unfinished_snapshots)
        left += [path for path in others if _changed_at(path) < oldest]
        yield self._clear("unfinished files", left)
        yield self._claimed()

    def _claimed(self) -> Check:
        """Examine claimed deliveries under the lock of producers that forward to Redis, because they claim them too."""
        if not self._spool.claimed(FIELD_REPORTS):
            return healthy("spool", f"{self._spool.pending(FIELD_REPORTS)} deliveries wait")
        with ExitStack() as stack:
            try:
                lock = spill_lock(self._spool.locks, FIELD_REPORTS)
                stack.enter_context(exclusive(lock, "examining the spool"))
            except TransientError:
                return healthy("spool", "not judged: a producer is forwarding to Redis")
            claimed = self._spool.claimed(FIELD_REPORTS)
            if not claimed:
                return healthy("spool", f"{self._spool.pending(FIELD_REPORTS)} deliveries wait")
            summary = f"{len(claimed)} claimed by a process that ended: {summarise(claimed)}"
            if not self._is_repair:
                return repairable("spool", summary, "return them to the spool, as the next claim would")
            stuck = [name for name in claimed if not self._spool.release(FIELD_REPORTS, name)]
            if stuck:
                problem = f"{summary}; {len(stuck)} of them cannot be moved: {summarise(stuck)}"
                return damaged(
                    "spool",
                    problem,
                    "move these out of the folder claimed yourself; the others were returned to the spool",
                )
            return repaired("spool", summary, "returned to the spool")

    def _temporary_files(self) -> Iterator[Check]:
        """Examine what killed writers left beside their targets; folders with checks of their own are left out."""
        skipped = {self._home.tmp, self._home.unfinished_snapshots, self._home.spool}
        unfinished = [
            path
            for root in (self._home.data, self._home.prefect, self._home.mlruns)
            for path in unfinished_files(root, skipped)
        ]
        oldest = time.time() - ABANDONED_S
        yield self._clear("temporary files", [path for path in unfinished if _changed_at(path) < oldest])

    def _set_aside(self) -> Iterator[Check]:
        """Count the spool files that could not be read completely; only the operator can repair or delete them."""
        for topic in self._spool.topics():
            names = self._spool.set_aside(topic)
            if names:
                summary = f"{counted(len(names), 'file')} in {self._spool.folder(topic, 'aside')}: {summarise(names)}"
                yield damaged(f"unreadable files of {topic}", summary, _ASIDE_ADVICE)
            else:
                yield healthy(f"unreadable files of {topic}", "none")

    def _clear(self, name: str, left: Sequence[Path]) -> Check:
        if not left:
            return healthy(name, "none")
        summary = summarise([str(path.relative_to(self._home.root)) for path in left])
        if not self._is_repair:
            return repairable(name, summary, "delete them: nothing in them was committed")
        for path in left:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)  # its owner may remove it meanwhile
        return repaired(name, summary, "deleted")


def open_doctor(container: Container) -> Doctor:
    """Return the doctor of a home."""
    return Doctor(
        container.home,
        open_spool(container.bus_spec),
        container.registry_of,
        code_version=container.provenance.code_version,
        clock=container.clock,
        progress=container.progress,
        bus=container.bus_spec,
    )


def _section(name: str, checks: Iterable[Check]) -> list[Check]:
    """Return the checks of one section; an unforeseen error counts as damage, and the other sections continue."""
    examined: list[Check] = []
    try:
        for check in checks:
            examined.append(check)
    except Exception as error:  # noqa: BLE001 - a report that ends here would hide what the others find
        summary = str(error) if isinstance(error, SimicError) else f"{type(error).__name__}: {error}"
        remedy = "the rest of this section was not examined; repair what the message names, then run the doctor again"
        examined.append(damaged(name, summary, remedy))
    return examined


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")  # its owner has just ended


def examine_snapshots(home: Home, *, is_deep: bool, is_repair: bool) -> Iterator[Check]:
    """Check every file of every snapshot; a repair moves damaged snapshots away."""
    broken, count = [], 0
    for path in folders(home):
        count += 1
        try:
            _check_snapshot(path, is_deep=is_deep)
        except (SimicError, OSError, ValueError) as error:
            broken.append((path, str(error)))
    if not broken:
        judged = "size and SHA-256" if is_deep else "size; --deep also checks SHA-256"
        yield healthy("snapshots", f"{count} as sealed ({judged})")
    for path, problem in broken:
        if is_repair:
            where = move_to_damaged(path)
            yield repaired(f"snapshot {path.name}", problem, f"moved to {where}; `simic curate` makes it again")
        else:
            remedy = "move it away; `simic curate` makes it again from the rows still in the lake"
            yield damaged(f"snapshot {path.name}", problem, remedy)


def _check_snapshot(path: Path, *, is_deep: bool) -> None:
    read_manifest(path, Verify.ALL if is_deep else Verify.SIZES)


def examine_catalogue(home: Home, checks: Sequence[Check], *, is_repair: bool) -> Iterator[Check]:
    """Check the catalogue; a repair rebuilds it unless ``checks`` found damage that would enter it."""
    if any(check.health is Health.DAMAGED for check in checks):
        yield healthy("catalogue", "not rebuilt: repair the damage above first")
        return
    if not is_repair:
        yield healthy("catalogue", "rebuilt before every query")
        return
    build_catalogue(home)
    yield healthy("catalogue", "rebuilt")
