"""The outbox: promised, put, marked."""

from __future__ import annotations

from pathlib import Path

from support.builders.judged_candidates import NOW

from simic.bus.spool.bus import SpoolBus
from simic.contracts.envelope import EventEnvelope
from simic.contracts.names import POLICY_UPDATES
from simic.publication.outbox import Outbox


def event(number: int) -> EventEnvelope:
    return EventEnvelope(
        event_id=f"{number:032x}", type="innovation.policy_update", source="test", created_at=NOW, payload=b"{}"
    )


def test_everything_promised_goes_out_once(tmp_path: Path) -> None:
    outbox, bus = Outbox(tmp_path / "outbox", lambda _event: None), SpoolBus(tmp_path / "spool")
    for number in (2, 1):
        outbox.add(event(number))
    assert outbox.flush(bus, POLICY_UPDATES) == [event(1), event(2)]
    assert bus.pending(POLICY_UPDATES) == 2
    outbox.add(event(1))
    assert outbox.flush(bus, POLICY_UPDATES) == []
    assert outbox.delivered() == [event(1), event(2)]


def test_a_half_written_promise_is_no_promise(tmp_path: Path) -> None:
    outbox, bus = Outbox(tmp_path / "outbox", lambda _event: None), SpoolBus(tmp_path / "spool")
    outbox.add(event(1))
    (tmp_path / "outbox" / "pending" / f"{2:032x}.tmp").write_bytes(b'{"event_id":')
    assert outbox.flush(bus, POLICY_UPDATES) == [event(1)]
