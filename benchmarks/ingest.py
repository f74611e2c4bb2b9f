"""Reports per second and core: the whole way from spool to committed Parquet, and its column step against a peer.

The peer for the column step is ``pydantic -> model_dump -> pyarrow.Table.from_pylist``; the same table is asserted.
Times are those of the process, not of the wall, because the spool's disk and the neighbours are not ours.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from enum import Enum
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.homes import TOPIC, ingest_all, land
from support.reports import episode, line

from simic.bus.spool import SpoolBus
from simic.contracts.field_report import FieldReport
from simic.lake.columns import Landing, landed_table
from simic.lake.schema import REPORT_SCHEMA
from simic.runtime.clock import utc_now
from simic.runtime.settings import Home

TARGET = 1.0
"""Columns at least as fast as the peer's."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    parser.add_argument("--out", type=Path, help="also write the results here, as JSON")
    parser.add_argument("--check", action="store_true", help=f"exit 1 below {TARGET:g}x")
    parser.add_argument("--episodes", type=int, default=1000)
    arguments = parser.parse_args()
    # Lines only: the collector would walk over reports held here again and again, and no real ingest holds them.
    lines = [line(report) for key in range(arguments.episodes) for report in episode(key)]
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder))
        land(home, episode(2**31 - 1))  # first use pays for imports and directories
        bus = SpoolBus(home.spool)
        for start in range(0, len(lines), 1280):
            bus.put(TOPIC, f"chunk-{start:07d}", lines[start : start + 1280])
        started = time.process_time()
        receipt = ingest_all(home, clock=utc_now)
        ingest_s = time.process_time() - started
    assert receipt.landed == len(lines)
    reports = [FieldReport.model_validate_json(data) for data in lines[:5000]]
    ours_s, peer_s = columns_of(reports)
    result = {
        "reports_per_s_core": round(len(lines) / ingest_s),
        "bytes_per_report": round(sum(map(len, lines)) / len(lines)),
        "columns_per_s": round(len(reports) / ours_s),
        "columns_over_from_pylist": round(peer_s / ours_s, 2),
    }
    text = json.dumps({"name": "ingest", "target_ratio": TARGET, **result})
    if arguments.out is not None:
        arguments.out.write_text(text + "\n", "utf-8")
    print(text if arguments.json else "\n".join(f"{name}: {value}" for name, value in result.items()))
    return int(arguments.check and result["columns_over_from_pylist"] < TARGET)


def columns_of(reports: list[FieldReport]) -> tuple[float, float]:
    """Seconds for the columns of a batch, from models on: ours and the peer's."""
    started = time.process_time()
    rows = [Landing(report.model_dump_json().encode(), "d" * 64, "file", 1) for report in reports]
    table = landed_table(rows, utc_now()).select(REPORT_SCHEMA.names)
    ours_s = time.process_time() - started
    started = time.process_time()
    peer = pa.Table.from_pylist([values(report.model_dump()) for report in reports], schema=REPORT_SCHEMA)
    peer_s = time.process_time() - started
    assert table.equals(peer)
    return ours_s, peer_s


def values(item: Any) -> Any:
    """Enumerations as text, which is all that Arrow takes."""
    if isinstance(item, Enum):
        return item.value
    if isinstance(item, dict):
        return {key: values(value) for key, value in item.items()}
    return [values(value) for value in item] if isinstance(item, list) else item


if __name__ == "__main__":
    raise SystemExit(main())
