"""Reports per second and core from spool bytes to landed Parquet, against per-row pydantic and ``from_pylist``.

Both read the same spool files line by line, validate every report, and write the same columns as zstd-3 Parquet with
fsync, each in batches of the size that suits it best; the columns are asserted to be equal. The peer does nothing else.
Ours also checks for hostile lines, digests contents, drops repetitions against all that landed before, and keeps ledger
and quarantine.

Times are those of the process, not of the wall, because the spool's disk and the neighbours are not ours. The two run
in turn, and the fastest round of each counts.

``--reports N`` streams N generated reports through ``ingest()`` instead, delivery by delivery, and prints the memory
in use on the way.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.builders.reports import BLUEPRINTS, episode, line, plain, smaller
from support.faults.hostile_reports import ID
from support.homes.pipeline import NOW, PROVENANCE, TOPIC, ingest_all, land

from simic.bus.protocol import Bus, BusCounters, Delivery, Line
from simic.bus.spool.bus import SpoolBus
from simic.contracts.field_report import FieldReport
from simic.contracts.settings.run import IngestConfig
from simic.ingestion.ingest import ingest
from simic.lake.parts import write_part
from simic.lake.schema import REPORT_SCHEMA
from simic.lake.store import LocalParts
from simic.runtime.clock import utc_now
from simic.runtime.home import Home

TARGET = 2.0
ROUNDS = 4
DELIVERY = 1280
"""Reports per file in the spool."""
PEER_BATCH = 5000
"""Reports per part of the peer: with twice as many, it is some five per cent slower."""
MAX_RSS_GROWTH = 0.15
"""Share by which memory may grow between a quarter of the way and the end."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    parser.add_argument("--out", type=Path, help="also write the results here, as JSON")
    parser.add_argument("--check", action="store_true", help=f"exit 1 below {TARGET:g}x, or if memory grows")
    parser.add_argument("--episodes", type=int, default=1000, help="of 20 reports each")
    parser.add_argument("--reports", type=int, help="stream so many reports and watch the memory")
    arguments = parser.parse_args()
    result, is_good = soak(arguments.reports) if arguments.reports else race(arguments.episodes)
    text = json.dumps({"name": "ingest", **result})
    if arguments.out is not None:
        arguments.out.write_text(text + "\n", "utf-8")
    if arguments.json:
        print(text)
    return int(arguments.check and not is_good)


def race(episodes: int) -> tuple[dict[str, Any], bool]:
    """Ours against the peer, for small and for larger reports."""
    sizes = []
    for name, shrink in (("small host", True), ("common host", False)):
        # Lines only: the collector would walk over reports held here again and again, and no real ingest holds them.
        lines = [
            line(FieldReport.model_validate(smaller(plain(report))) if shrink else report)
            for key in range(episodes)
            for report in episode(key)
        ]
        sizes.append({"size": name, **_compare(lines)})
        print(" ".join(f"{key}: {value}" for key, value in sizes[-1].items()), file=sys.stderr)
    return {"target_ratio": TARGET, "sizes": sizes}, sizes[0]["ratio"] >= TARGET


def _compare(lines: list[bytes]) -> dict[str, Any]:
    ours_s, peer_s = [], []
    with tempfile.TemporaryDirectory() as folder:
        spool = Path(folder) / "spool"
        for start in range(0, len(lines), DELIVERY):
            SpoolBus(spool).put(TOPIC, f"chunk-{start:07d}", lines[start : start + DELIVERY])
        for number in range(ROUNDS):
            homes = [_home(Path(folder) / f"{name}-{number}", spool) for name in ("ours", "peer")]
            started = time.process_time()
            receipt = ingest_all(homes[0], clock=utc_now)
            ours_s.append(time.process_time() - started)
            assert receipt.landed == len(lines)
            started = time.process_time()
            parts = list(naive(homes[1]))
            peer_s.append(time.process_time() - started)
            assert _columns(homes[0].experience / part for part in receipt.parts).equals(_columns(parts))
    return {
        "bytes_per_report": round(sum(map(len, lines)) / len(lines)),
        "reports_per_s_core": round(len(lines) / min(ours_s)),
        "peer_per_s_core": round(len(lines) / min(peer_s)),
        "ratio": round(min(peer_s) / min(ours_s), 2),
    }


def _home(root: Path, spool: Path) -> Home:
    """A home that has ingested before (first use pays for imports and folders) with the spool's files waiting."""
    home = Home(root)
    land(home, episode(2**31 - 1))
    for path in (spool / TOPIC / "incoming").iterdir():
        (home.spool / TOPIC / "incoming" / path.name).hardlink_to(path)
    return home


def _columns(paths: Iterable[Path]) -> pa.Table:
    return pa.concat_tables(pq.read_table(path, columns=REPORT_SCHEMA.names, partitioning=None) for path in paths)


def naive(home: Home) -> Iterator[Path]:
    """The peer: one model per row, then rows to columns."""
    batch: list[dict[str, Any]] = []
    config, bus = IngestConfig(), SpoolBus(home.spool)

    def write() -> Path:
        table = pa.Table.from_pylist(batch, schema=REPORT_SCHEMA)
        stem = f"{batch[0]['report_id']}-{'0' * 16}"
        batch.clear()
        store = LocalParts(home.experience)
        part = write_part(table, store=store, tmp=home.tmp, stem=stem, landed_at=NOW, checkpoint=lambda _: None)
        return store.path(part.name)

    for delivery in bus.claim(TOPIC):
        for each in delivery.open(config.max_report_bytes):
            batch.append(FieldReport.model_validate_json(each.data).model_dump())
            if len(batch) >= PEER_BATCH:
                yield write()
        bus.ack(delivery)
    if batch:
        yield write()


class Stream:
    """A bus that makes up its deliveries as they are asked for and notes the memory in use as they are finished."""

    def __init__(self, reports: int) -> None:
        self._deliveries = -(-reports // DELIVERY)
        self._templates = [line(report) for key in range(64) for report in episode(key)]
        self.samples: list[tuple[int, float]] = []

    def claim(self, topic: str) -> Iterator[Delivery]:
        for number in range(self._deliveries):
            yield Delivery(topic, f"stream-{number:06d}", partial(self._lines, number))

    def ack(self, delivery: Delivery) -> None:
        number = int(delivery.source.rpartition("-")[2]) + 1
        if number % max(1, self._deliveries // 16) == 0:
            self.samples.append((number * DELIVERY, resident_mb()))
            print(f"{self.samples[-1][0]:>10,} reports: {self.samples[-1][1]:.0f} MB", file=sys.stderr)

    def counters(self, _topic: str) -> BusCounters:
        return BusCounters(retried=0, reclaimed=0, dead_lettered=0, lost=0, lag=0)

    def _lines(self, delivery: int, _max_line_bytes: int) -> Iterator[Line]:
        """Valid reports, each with an id of its own that is spread like a real one."""
        for number in range(DELIVERY):
            template = self._templates[number % len(self._templates)]
            report_id = hashlib.md5(b"%d %d" % (delivery, number), usedforsecurity=False).hexdigest().encode()
            yield Line(number + 1, template[: ID.start] + report_id + template[ID.stop :], None)


def resident_mb() -> float:
    """Memory of this process that is in use now."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * resource.getpagesize() / 1e6


def soak(reports: int) -> tuple[dict[str, Any], bool]:
    """Streams reports through the real thing; whether memory stayed flat."""
    stream = Stream(reports)
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        receipt = ingest(
            cast(Bus, stream),
            Home(Path(folder)),
            IngestConfig(),
            frozenset(BLUEPRINTS),
            provenance=PROVENANCE,
            clock=utc_now,
        )
        cpu_s = time.process_time() - started
    assert receipt.landed == receipt.read >= reports
    middle, last = stream.samples[len(stream.samples) // 4][1], stream.samples[-1][1]
    growth = last / middle - 1
    print(f"from a quarter of the way to the end: {growth:+.1%}", file=sys.stderr)
    result = {
        "reports": receipt.landed,
        "rss_mb": {str(count): round(rss) for count, rss in stream.samples},
        "rss_growth": round(growth, 3),
        "reports_per_s_core": round(receipt.landed / cpu_s),
    }
    return {"max_rss_growth": MAX_RSS_GROWTH, "soak": result}, growth <= MAX_RSS_GROWTH


if __name__ == "__main__":
    raise SystemExit(main())
