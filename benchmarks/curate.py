"""Seconds to curate 1, 3 and 10 million landed steps under 4 GB on 2 threads, and to recognise repeated ids.

Tables are everything that decides: dedupe, episodes, splits, rewards, returns, checks; files are the snapshot's, in
which every nested state is decoded, sorted and encoded anew. Ratios and shares are of CPU seconds over all threads,
because the neighbours' share of a machine is not ours; the wall's seconds stand beside them. The peer for the tables
is a plain Python loop over the same flat columns at the smallest size, which does a part of the work (no checks, no
splits, no flags); the same returns are asserted. Every size runs in a process of its own.
"""

from __future__ import annotations

import multiprocessing
import resource
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from common.command_line import make_parser, show

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.builders.reports import episode, line, plain
from support.homes.pipeline import NOW, PROVENANCE, FixedClock

from simic.contracts.field_report import FieldReport
from simic.contracts.results.receipts import SnapshotManifest
from simic.contracts.rewards import DEFAULT_FAMILY, FAMILIES, RewardConfig
from simic.contracts.settings.run import CurateConfig
from simic.curation.run import curate
from simic.lake.arrow_reader import AcceptedReports, open_arrow_reader
from simic.lake.dedup import open_dedup_index
from simic.lake.parts import Part, schema_digest, write_part
from simic.lake.store import LocalParts
from simic.ledgers import PARTS_LEDGER
from simic.ledgers.ledger import Ledger
from simic.runtime.home import Home

HORIZON = 20
EPISODES = 50
"""Different ones; every copy of them gets ids and hosts of its own."""
PART_STEPS = 200_000
HOSTS = 20_000
MEMORY_MB, THREADS = 4096, 2
REPEATED = 0.01
"""Share of the rows of a part that land twice."""
MOST_RATIO, MOST_DEDUPE_S = 12.0, 1.0
BATCH_IDS = 1_000_000


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--steps", type=int, nargs="+", default=[1_000_000, 3_000_000, 10_000_000])
    parser.add_argument("--family", choices=sorted(FAMILIES), default=DEFAULT_FAMILY, help="reward family")
    parser.add_argument("--slots", type=int, default=1, choices=(1, 3), help="slots of a host: 3 is the benchmark's")
    parser.add_argument("--profile", action="store_true", help="print the seconds of every SQL file")
    parser.add_argument("--check", action="store_true", help="exit 1 where time is not linear or dedupe too slow")
    parser.add_argument("--dir", type=Path, help="where to work; 10 million steps take some 10 GB")
    arguments = parser.parse_args()
    sizes = sorted(arguments.steps)
    runs = {}
    for steps in sizes:
        with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
            job = (Path(folder), steps, arguments.family, arguments.slots, steps == sizes[0], steps == sizes[-1])
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                runs[steps] = pool.apply(measure, job)
        if arguments.profile:
            report(steps, runs[steps])
    result = summary(runs, arguments.family, arguments.slots)
    show(arguments, {"name": "curate", **result}, "\n".join(f"{name}: {value}" for name, value in result.items()))
    is_slow = result["ratio_largest_over_smallest"] > MOST_RATIO * sizes[-1] / sizes[0] / 10
    return int(arguments.check and (is_slow or result["dedupe_s"] > MOST_DEDUPE_S))


def measure(folder: Path, steps: int, family: str, slots: int, has_peer: bool, has_dedupe: bool) -> dict[str, Any]:
    """One size, from parts on disk to a sealed snapshot."""
    home = Home(folder / "home")
    paths = list(land(home, steps, slots))
    marks: list[tuple[str, float]] = []
    started, started_cpu = time.perf_counter(), time.process_time()
    manifest = curate(
        home,
        CurateConfig(memory_limit_mb=MEMORY_MB, threads=THREADS, reward=FAMILIES[family]()),
        HORIZON,
        provenance=PROVENANCE,
        clock=FixedClock(NOW),
        watch=lambda file: marks.append((file, time.process_time())),
    )
    total_s, cpu_s = time.perf_counter() - started, time.process_time() - started_cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # before the others below take theirs
    assert manifest.rows_out == steps and manifest.rejected == {"duplicate": manifest.rows_in - steps}
    moments = [started_cpu, *(moment for _, moment in marks)]
    files = {name: after - before for (name, after), before in zip(marks, moments, strict=False)}
    written_s = sum(seconds for name, seconds in files.items() if name.endswith(".parquet.sql"))
    return {
        "total_s": total_s,
        "cpu_s": cpu_s,
        "tables_s": sum(files.values()) - written_s,
        "files_s": written_s,
        "peak_rss_mb": peak / 1024,
        "parts_mb": sum(path.stat().st_size for path in paths) / 2**20,
        "sql_s": files,
        "peer_s": peer_seconds(paths, manifest) if has_peer and family == "basic" else None,
        "dedupe_s": dedupe_seconds(paths, folder / "seen") if has_dedupe else None,
    }


def land(home: Home, steps: int, slots: int) -> Iterator[Path]:
    """Commits parts that hold the given number of steps, and some of them twice."""
    template = template_table(home, slots)
    rng = np.random.default_rng(0)
    for number, start in enumerate(range(0, steps, PART_STEPS)):
        table = part_table(template, min(PART_STEPS, steps - start), number, rng)
        again = table.slice(0, int(len(table) * REPEATED)).set_column(
            table.schema.get_field_index("source"), table.schema.field("source"), pa.repeat(f"again-{number}",
            int(len(table) * REPEATED)),
        )  # fmt: skip
        whole = pa.concat_tables([table, again])
        store = LocalParts(home.experience)
        written = write_part(
            whole, store=store, tmp=home.tmp, stem=f"{number:06d}-{0:016x}", landed_at=NOW, checkpoint=lambda _: None
        )
        part = Part(
            part=written.name, rows=len(whole), size_bytes=written.size_bytes, sha256=written.sha256,
            sources=[f"bench-{number}"], schema_digest=schema_digest(whole.schema), landed_at=NOW, code_version="bench",
        )  # fmt: skip
        Ledger(home.ledger / PARTS_LEDGER).append(part.model_dump(mode="json"))
        yield store.path(written.name)


def template_table(home: Home, slots: int) -> pa.Table:
    """The reports as they land."""
    rows = AcceptedReports()
    for report in reports(slots):
        rows.add(report.report_id, "", line(report), "bench", 1)
    with open_arrow_reader(home.tmp / "columns") as columns:
        return columns.table(rows, NOW)


def reports(slots: int) -> list[FieldReport]:
    """Whole episodes; with one slot also fewer layers and a shorter memory, so that ten million fit a small disk."""
    found = [report for key in range(EPISODES) for report in episode(key, horizon=HORIZON)]
    return found if slots == 3 else [FieldReport.model_validate(smaller(plain(report))) for report in found]


def smaller(report: dict[str, Any]) -> dict[str, Any]:
    for state in (report["state"], report["final_state"]):
        if state is not None:
            state["slots"], state["graph"]["layers"] = state["slots"][:1], state["graph"]["layers"][:2]
            state["graph"]["connects"], state["graph"]["monitors"] = [[0, 1]], [[0, 0]]
            for name in ("train_loss_history", "validation_loss_history", "validation_accuracy_history"):
                state[name] = state[name][-1:]
    report["available"]["slot"] = [row[:1] for row in report["available"]["slot"]]
    return report


def part_table(template: pa.Table, steps: int, number: int, rng: np.random.Generator) -> pa.Table:
    """Copies of the template until there are ``steps`` rows, each with ids and hosts of its own."""
    runs = steps // HORIZON
    copies = -(-steps // len(template))
    table = pa.concat_tables([template] * copies).slice(0, steps).combine_chunks()
    host = table.column("host").chunk(0)
    keys = pa.array(np.repeat(rng.integers(0, HOSTS, runs), HORIZON))
    digests = hexes(rng, steps, 4)
    columns = {
        "run_id": np.repeat(hexes(rng, runs, 2), HORIZON),
        "report_id": hexes(rng, steps, 2),
        "content_digest": digests,
        "source": pa.repeat(f"bench-{number}", steps),
        "line": pa.array(np.arange(1, steps + 1)),
        "host": pa.StructArray.from_arrays([host.field("set"), host.field("family"), keys], ["set", "family", "key"]),
    }
    for name, values in columns.items():
        field = table.schema.field(name)
        table = table.set_column(table.schema.get_field_index(name), field, pa.array(values, field.type))
    return table


def hexes(rng: np.random.Generator, count: int, words: int) -> np.ndarray[Any, Any]:
    """[count] random hex texts of 16 characters a word."""
    text = rng.integers(0, 2**64, (count, words), dtype=np.uint64).tobytes().hex()
    width = 16 * words
    return np.array([text[start : start + width] for start in range(0, len(text), width)])


def peer_seconds(paths: list[Path], manifest: SnapshotManifest) -> float:
    """A loop over the flat columns: first of each id, whole episodes, rewards, returns."""
    prices = RewardConfig()
    started = time.process_time()
    told: dict[str, Any] = {}
    for path in paths:
        table = pq.read_table(path, columns=["report_id", "run_id", "step", "terminated", "truncated", "metrics"])
        for row in table.to_pylist():
            told.setdefault(row["report_id"], row)
    runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in told.values():
        runs[row["run_id"]].append(row)
    returns: dict[str, float] = {}
    for run, rows in runs.items():
        rows.sort(key=lambda row: row["step"])
        if [row["step"] for row in rows] != list(range(len(rows))) or not rows[-1]["terminated"]:
            continue
        to_go = 0.0
        for row in reversed(rows):
            metrics = row["metrics"]
            gained = metrics["validation_accuracy_after"] - metrics["validation_accuracy_before"]
            owed = prices.rent * metrics["rent_parameters"] / prices.rent_parameters / HORIZON
            to_go = prices.accuracy_scale * gained - owed + manifest.gamma * to_go
        returns[run] = to_go
    seconds = time.process_time() - started
    found = pq.read_table(Path(manifest.path) / "episodes.parquet", columns=["run_id", "discounted_return"])
    expected = np.array([returns[run] for run in found["run_id"].to_pylist()])
    np.testing.assert_allclose(found["discounted_return"].to_numpy(), expected, rtol=0, atol=1e-9)
    return seconds


def dedupe_seconds(paths: list[Path], tmp: Path) -> dict[str, float]:
    """A million ids, all new, against every id that has landed; and how long the index takes to open."""
    ids = hexes(np.random.default_rng(1), BATCH_IDS, 2).tolist()
    started = time.process_time()
    with open_dedup_index(paths, tmp) as seen:
        opened_s = time.process_time() - started
        started = time.process_time()
        assert seen.find(ids) == {}
        found_s = time.process_time() - started
    shutil.rmtree(tmp, ignore_errors=True)
    return {"open": opened_s, "find": found_s}


def report(steps: int, run: dict[str, Any]) -> None:
    for name, seconds in sorted(run["sql_s"].items(), key=lambda pair: -pair[1]):
        print(f"{steps:>11,} steps {seconds:8.2f} s  {name}", file=sys.stderr)


def summary(runs: dict[int, dict[str, Any]], family: str, slots: int) -> dict[str, Any]:
    smallest, largest = min(runs), max(runs)

    def each(name: str) -> dict[str, float]:
        return {str(steps): round(run[name], 2) for steps, run in runs.items()}

    peer_s, dedupe = runs[smallest]["peer_s"], runs[largest]["dedupe_s"]
    return {
        "family": family,
        "slots": slots,
        "threads": THREADS,
        "memory_limit_mb": MEMORY_MB,
        "wall_s": each("total_s"),
        "cpu_s": each("cpu_s"),
        "tables_cpu_s": each("tables_s"),
        "files_cpu_s": each("files_s"),
        "peak_rss_mb": each("peak_rss_mb"),
        "parts_mb": each("parts_mb"),
        "ratio_largest_over_smallest": round(runs[largest]["cpu_s"] / runs[smallest]["cpu_s"], 2),
        "tables_ratio": round(runs[largest]["tables_s"] / runs[smallest]["tables_s"], 2),
        "python_over_tables": None if peer_s is None else round(peer_s / runs[smallest]["tables_s"], 2),
        "known_ids": largest,
        "dedupe_open_s": round(dedupe["open"], 2),
        "dedupe_s": round(dedupe["find"], 2),
    }


if __name__ == "__main__":
    raise SystemExit(main())
