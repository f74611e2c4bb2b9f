"""Every report lands once or is kept with its reason, in whatever company it comes."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.builders.reports import BLUEPRINTS, episode, episodes, line, plain
from support.homes.pipeline import NOW, PROVENANCE, TOPIC, FixedClock, drop, ingest_all, land

from simic.bus.spool.bus import SpoolBus
from simic.catalogue.query import query
from simic.contracts.errors import TransientError
from simic.contracts.field_report import FieldReport
from simic.contracts.results.receipts import IngestReceipt
from simic.contracts.settings.run import IngestConfig
from simic.ingestion.ingest import ingest
from simic.lake.schema import LANDED_SCHEMA, REPORT_SCHEMA
from simic.runtime.home import Home
from simic.runtime.locks import exclusive


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def landed_ids(home: Home) -> list[str]:
    return [row["report_id"] for row in query(home, "SELECT report_id FROM reports")]


def quarantined(home: Home) -> list[tuple[int, str]]:
    rows = query(home, "SELECT line, reason FROM quarantine ORDER BY source, line")
    return [(row["line"], row["reason"]) for row in rows]


def assert_adds_up(receipt: IngestReceipt) -> None:
    assert receipt.read == receipt.landed + receipt.duplicate + receipt.quarantined
    assert receipt.quarantined == sum(receipt.reasons.values())


def test_reports_land_with_all_they_said(home: Home) -> None:
    reports = episodes(range(3))
    receipt = land(home, reports)
    assert (receipt.read, receipt.landed, receipt.ledger_rows, len(receipt.parts)) == (60, 60, 60, 1)
    assert_adds_up(receipt)
    table = pq.read_table(home.experience / receipt.parts[0], partitioning=None)
    assert table.schema.equals(LANDED_SCHEMA)
    kept = [
        FieldReport.model_validate({name: value for name, value in row.items() if name in REPORT_SCHEMA.names})
        for row in table.to_pylist()
    ]
    assert kept == reports
    assert SpoolBus(home.spool).pending(TOPIC) == 0


def test_every_fault_is_kept_with_its_reason_and_costs_nothing_else(home: Home) -> None:
    """The acceptance cases in one file, in random places among good reports; PD-5."""
    good = episodes(range(4))
    bad: dict[str, Any] = {
        "malformed_json": line(episode(10)[0])[:-300],
        "unknown_field": {**plain(episode(11)[0]), "surprise": 1},
        "non_finite": plain(episode(12)[0]),
        "duplicate": good[7],
        "unknown_blueprint": {**plain(episode(13)[2]), "blueprint_id": "novel"},
        "too_long": b'{"x": "' + b"y" * 300_000 + b'"}',
        "too_deep": b"[" * 50 + b"]" * 50,
        "conflict": {**plain(good[3]), "outcome": "SUCCESS"},
    }
    bad["non_finite"]["metrics"]["validation_accuracy_after"] = float("nan")
    rows: list[Any] = list(good)
    rng = random.Random(0)  # noqa: S311
    for fault in bad.values():
        rows.insert(rng.randrange(10, len(rows)), fault)
    drop(home, "mixed", rows)
    receipt = ingest_all(home, batch_reports=17)
    assert_adds_up(receipt)
    assert (receipt.landed, receipt.duplicate, receipt.quarantined) == (80, 1, 7)
    assert sorted(landed_ids(home)) == sorted(report.report_id for report in good)
    kept = query(home, "SELECT line, reason, message, raw FROM quarantine ORDER BY line")
    expected = [(n, reason) for n, row in enumerate(rows, 1) for reason, fault in bad.items() if row is fault]
    assert [(row["line"], row["reason"]) for row in kept if row["reason"] != "duplicate"] == [
        (n, reason) for n, reason in expected if reason != "duplicate"
    ]
    assert sum(row["reason"] == "duplicate" for row in kept) == 1
    assert receipt.reasons == {reason: 1 for reason in sorted(bad) if reason != "duplicate"}
    assert all(row["message"] for row in kept)
    raw = {row["reason"]: row["raw"] for row in kept}
    assert raw["malformed_json"] == bad["malformed_json"].decode()
    assert len(raw["too_long"]) == 16 * 1024


def test_the_same_file_again_lands_nothing_and_says_so(home: Home) -> None:
    reports = episode(1)
    for expected in ((20, 0), (0, 20)):
        drop(home, "mine", reports)
        receipt = ingest_all(home)
        assert (receipt.landed, receipt.duplicate, receipt.quarantined) == (*expected, 0)
    assert len(landed_ids(home)) == 20
    assert quarantined(home) == [(n, "duplicate") for n in range(1, 21)]


def test_told_again_at_another_time_is_the_same_report(home: Home) -> None:
    """Collecting the same episodes twice gives the same ids and differs in the hour only."""
    land(home, episode(1))
    receipt = land(home, episode(1, issued_at=NOW), name="again")
    assert (receipt.landed, receipt.duplicate, receipt.quarantined) == (0, 20, 0)
    first = query(home, "SELECT min(issued_at) AS t FROM reports")
    assert first == [{"t": episode(1)[0].issued_at.isoformat()}]


def test_other_content_under_a_landed_id_is_a_conflict_and_the_first_stays(home: Home) -> None:
    report = episode(1)[0]
    land(home, [report])
    receipt = land(home, [{**plain(report), "outcome": "SUCCESS"}], name="other")
    assert (receipt.landed, receipt.duplicate, receipt.reasons) == (0, 0, {"conflict": 1})
    assert query(home, "SELECT outcome FROM reports") == [{"outcome": "NEUTRAL"}]
    assert query(home, "SELECT reason, report_id FROM quarantine") == [
        {"reason": "conflict", "report_id": report.report_id}
    ]


def test_torn_files_give_what_they_still_hold(home: Home) -> None:
    reports = episodes(range(60))
    source = SpoolBus(home.spool).put(TOPIC, "torn", map(line, reports))
    path = home.spool / TOPIC / "incoming" / source
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    drop(home, "whole", episode(100))
    receipt = ingest_all(home)
    assert_adds_up(receipt)
    assert receipt.reasons == {"torn": 1}
    assert 120 < receipt.landed < 1200
    expected = [report.report_id for report in reports[: receipt.landed - 20] + episode(100)]
    assert sorted(landed_ids(home)) == sorted(expected)


@pytest.mark.parametrize("batch", [5000, 21], ids=["same batch", "other batches"])
def test_a_redelivered_batch_is_dropped_without_a_trace_in_the_quarantine(home: Home, batch: int) -> None:
    """As after a crash between ledger line and acknowledgement."""
    drop(home, "a", [*episode(1), b"{", episode(1)[4]])
    ingest_all(home)
    before = quarantined(home)
    done = home.spool / TOPIC / "done" / "a.jsonl"
    done.rename(home.spool / TOPIC / "claimed" / "a.jsonl")
    receipt = ingest_all(home, clock=FixedClock(NOW + timedelta(hours=1)), batch_reports=batch)
    assert (receipt.read, receipt.landed, receipt.duplicate, receipt.quarantined) == (22, 0, 21, 1)
    assert quarantined(home) == before == [(21, "malformed_json"), (22, "duplicate")]
    assert query(home, "SELECT min(seen_at) AS t FROM quarantine")[0]["t"] < (NOW + timedelta(hours=1)).isoformat()


def test_the_quarantine_tells_why_a_line_was_refused_last(home: Home) -> None:
    """Its first reason is gone, for example because a setting changed; the same batch once more adds no file."""
    drop(home, "a", [*episode(1), b"[" * 40 + b"]" * 40])
    done, told = home.spool / TOPIC / "done" / "a.jsonl", []
    for hours, depth in ((0, 10), (1, 100), (2, 100)):
        if hours:
            done.rename(home.spool / TOPIC / "claimed" / "a.jsonl")
        ingest_all(home, clock=FixedClock(NOW + timedelta(hours=hours)), max_depth=depth)
        (row,) = query(home, "SELECT reason, seen_at < timestamptz '2026-01-06 09:30:30Z' AS is_early FROM quarantine")
        told.append((row["reason"], row["is_early"], len(list(home.quarantine.glob("*.parquet")))))
    assert told == [("too_deep", True, 1), ("contract", True, 2), ("contract", True, 2)]


def test_a_line_that_comes_again_to_a_full_quarantine_keeps_its_bytes(home: Home) -> None:
    drop(home, "a", [b"{broken"])
    ingest_all(home)
    (home.spool / TOPIC / "done" / "a.jsonl").rename(home.spool / TOPIC / "incoming" / "a.jsonl")
    drop(home, "b", [b"{"])
    ingest_all(home, clock=FixedClock(NOW + timedelta(hours=1)), quarantine_mb=0)
    assert len(list(home.quarantine.glob("*.parquet"))) == 2
    rows = query(home, "SELECT source, raw, message LIKE '1 lines of%' AS is_summary FROM quarantine ORDER BY source")
    assert [tuple(row.values()) for row in rows] == [("a.jsonl", "{broken", False), ("b.jsonl", "", True)]


def test_a_line_refused_for_another_reason_by_a_full_quarantine_keeps_its_bytes(home: Home) -> None:
    lines = b"[" * 50 + b"]" * 50
    drop(home, "a", [lines])
    ingest_all(home, max_depth=10)
    (home.spool / TOPIC / "done" / "a.jsonl").rename(home.spool / TOPIC / "incoming" / "a.jsonl")
    ingest_all(home, clock=FixedClock(NOW + timedelta(hours=1)), max_depth=100, quarantine_mb=0)
    assert query(home, "SELECT reason, raw FROM quarantine") == [{"reason": "contract", "raw": lines.decode()}]


def test_an_untimely_report_that_comes_again_adds_no_file(home: Home) -> None:
    """The bound that its message names moves with the clock."""
    drop(home, "a", episode(1, issued_at=NOW + timedelta(days=30)))
    for hours in (0, 1):
        ingest_all(home, clock=FixedClock(NOW + timedelta(hours=hours)))
        (home.spool / TOPIC / "aside" / "a.jsonl").rename(home.spool / TOPIC / "claimed" / "a.jsonl")
        assert len(list(home.quarantine.glob("*.parquet"))) == 1


def test_an_untimely_report_among_others_was_refused_when_it_first_came(home: Home) -> None:
    drop(home, "a", episode(1, issued_at=NOW + timedelta(days=30)))
    ingest_all(home)
    (home.spool / TOPIC / "aside" / "a.jsonl").rename(home.spool / TOPIC / "incoming" / "a.jsonl")
    drop(home, "b", [b"{"])
    ingest_all(home, clock=FixedClock(NOW + timedelta(hours=1)))
    assert len(list(home.quarantine.glob("*.parquet"))) == 2
    (row,) = query(home, "SELECT max(seen_at) AS t FROM quarantine WHERE reason = 'issued_at'")
    assert row["t"] < (NOW + timedelta(minutes=1)).isoformat()


def test_empty_bus_is_no_event(home: Home) -> None:
    receipt = ingest_all(home)
    assert (receipt.read, receipt.landed, receipt.parts, receipt.ledger_rows) == (0, 0, [], 0)
    assert not home.experience.exists()


def test_receipts_chain_through_the_ledger_digest(home: Home) -> None:
    first = land(home, episode(1))
    again = ingest_all(home)
    second = land(home, episode(2), name="b")
    assert first.ledger_digest == again.ledger_digest != second.ledger_digest
    assert second.ledger_rows == 40
    assert (first.seed, first.config_digest, first.started_at) == (7, "c" * 64, NOW)


def test_equal_content_gets_equal_names(home: Home, tmp_path: Path) -> None:
    other = Home(tmp_path / "other")
    assert land(home, episode(1)).parts == land(other, episode(1)).parts


def test_second_writer_is_refused_while_the_first_works(home: Home) -> None:
    drop(home, "a", episode(1))
    with exclusive(home.locks / "ingest", "ingest"), pytest.raises(TransientError, match="ingest"):
        ingest_all(home)
    assert ingest_all(home).landed == 20


def test_progress_counts_deliveries(home: Home) -> None:
    for key in range(3):
        drop(home, f"f{key}", episode(key))
    heard: list[int] = []
    ingest(
        SpoolBus(home.spool),
        home,
        IngestConfig(),
        frozenset(BLUEPRINTS),
        provenance=PROVENANCE,
        clock=FixedClock(),
        on_progress=heard.append,
    )
    assert heard == [1, 1, 1]


def test_a_full_quarantine_keeps_reasons_and_counts(home: Home) -> None:
    """PD-5: counted in the receipt, and visible in the view."""
    drop(home, "flood", [*episode(1), *(b"!" * n for n in range(1, 41))])
    receipt = ingest_all(home, quarantine_mb=0)
    assert_adds_up(receipt)
    assert (receipt.landed, receipt.quarantined, receipt.raw_dropped) == (20, 40, 40)
    (row,) = query(home, "SELECT raw, size_bytes, line, message FROM quarantine")
    assert (row["raw"], row["size_bytes"], row["line"]) == ("", 1, 21)
    assert row["message"].startswith("40 lines of the batch, the first: ")


def test_counts_go_to_the_metrics_after_every_batch(home: Home) -> None:
    """PD-5: the names are those of the design."""
    heard: list[tuple[int, Mapping[str, float]]] = []

    class Sink:
        def log(self, step: int, metrics: Mapping[str, float]) -> None:
            heard.append((step, metrics))

    drop(home, "a", [*episode(1), b"!", episode(1)[3]])
    receipt = ingest(
        SpoolBus(home.spool),
        home,
        IngestConfig(batch_reports=10),
        frozenset(BLUEPRINTS),
        provenance=PROVENANCE,
        clock=FixedClock(),
        sink=Sink(),
    )
    assert [step for step, _ in heard] == [1, 2, 3, 3]
    assert [metrics["simic.processor.reports_processed"] for _, metrics in heard] == [10, 20, 22, 22]
    assert heard[-1][1] == {
        "simic.processor.reports_processed": receipt.read,
        "simic.processor.reports_failed": receipt.quarantined,
        "simic.processor.reports_landed": receipt.landed,
        "simic.processor.reports_duplicate": receipt.duplicate,
        "simic.processor.raw_dropped": 0,
        "simic.bus.retried": 0,
        "simic.bus.reclaimed": 0,
        "simic.bus.dead_lettered": 0,
        "simic.bus.lost": 0,
        "simic.bus.lag": 0,
    }
    assert (receipt.read, receipt.landed, receipt.duplicate, receipt.quarantined) == (22, 20, 1, 1)


@pytest.mark.parametrize("missing", ["action", "log_prob_behaviour", "report_id", "available", "state"])
def test_an_experience_without_its_decision_never_lands(home: Home, missing: str) -> None:
    """D6: neither action nor behaviour propensity may be absent, nor null."""
    without, null = plain(episode(1)[0]), plain(episode(1)[1])
    del without[missing]
    null[missing] = None
    drop(home, "a", [without, null, episode(1)[2]])
    receipt = ingest_all(home)
    assert (receipt.landed, receipt.reasons) == (1, {"contract": 2})
    (part,) = receipt.parts
    assert not pq.read_schema(home.experience / part).field(missing).nullable
