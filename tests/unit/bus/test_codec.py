"""Contracts survive the wire; bytes that are none are refused with the place of the fault."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import zstandard
from support.builders.reports import episode, line, plain

from simic.bus.codec import MAX_PAYLOAD_BYTES, decode, encode, envelop, unwrap
from simic.contracts.envelope import EventEnvelope
from simic.contracts.errors import ContractError
from simic.contracts.field_report import FieldReport

NOW = datetime(2026, 1, 5, tzinfo=UTC)


def test_report_round_trip_is_one_line() -> None:
    for report in episode(1):
        assert b"\n" not in encode(report)
        assert decode(FieldReport, encode(report)) == report


def test_faults_are_named_without_quoting_the_input() -> None:
    raw = plain(episode(1)[0])
    raw["metrics"]["validation_loss_after"] = "secret"
    with pytest.raises(ContractError, match=r"metrics\.validation_loss_after") as caught:
        decode(FieldReport, line(raw))
    assert "secret" not in str(caught.value)


def test_envelope_id_is_that_of_its_content_not_of_the_hour() -> None:
    report = episode(1)[0]
    first = envelop(report, type_="tamiyo.field_report", source="a", created_at=NOW)
    again = envelop(report, type_="tamiyo.field_report", source="b", created_at=NOW.replace(year=2027))
    assert first.event_id == again.event_id
    assert unwrap(decode(EventEnvelope, encode(first)), FieldReport) == report


def test_packed_payloads_are_unpacked_within_bounds() -> None:
    report = episode(1)[0]
    whole = envelop(report, type_="a.b", source="a", created_at=NOW)
    pack = zstandard.ZstdCompressor().compress
    packed = whole.model_copy(update={"payload": pack(whole.payload), "content_encoding": "zstd"})
    assert unwrap(packed, FieldReport) == report
    bomb = packed.model_copy(update={"payload": pack(b" " * (MAX_PAYLOAD_BYTES * 50))})
    with pytest.raises(ContractError, match="exceeds"):
        unwrap(bomb, FieldReport)
    with pytest.raises(ContractError, match="not zstd"):
        unwrap(packed.model_copy(update={"payload": b"junk"}), FieldReport)
